"""Files that were changed after they were written are found."""

from __future__ import annotations

import pytest

from hvdkit.errors import CheckpointError
from hvdkit.job import manifest


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "epoch-0001.pt"
    path.write_bytes(b"weights" * 1000)
    manifest.note(path)
    return path


def test_what_was_written_down_passes_and_so_does_what_never_was(file):
    manifest.check(file)
    other = file.with_name("epoch-0002.pt")
    other.write_bytes(b"of a job that was killed before it wrote it down")
    manifest.check(other)


def test_a_changed_bit_and_another_length_are_named(file):
    content = file.read_bytes()
    file.write_bytes(b"W" + content[1:])
    with pytest.raises(CheckpointError, match=r"epoch-0001\.pt is damaged: its sha256 is not that of manifest\.json"):
        manifest.check(file)
    file.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"epoch-0001\.pt is damaged: it has 6999 bytes, and had 7000"):
        manifest.check(file)


def test_files_that_are_gone_are_forgotten(file):
    newer = file.with_name("epoch-0002.pt")
    newer.write_bytes(b"newer")
    file.unlink()
    manifest.note(newer)
    assert "epoch-0001.pt" not in file.with_name("manifest.json").read_text()


@pytest.mark.parametrize("content", ["", "[1]", "{"])
def test_without_a_manifest_files_are_read_as_they_are(file, content):
    file.with_name("manifest.json").write_text(content)
    file.write_bytes(b"other")
    manifest.check(file)
