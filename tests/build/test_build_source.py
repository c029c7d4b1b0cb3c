from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from hvdkit.errors import BuildError
from hvdkit.tools.horovod_build import source

pytestmark = [pytest.mark.usefixtures("needs_wheel"), pytest.mark.processes]


def test_the_real_archive_is_fetched_with_pip_and_checked(tmp_path: Path) -> None:
    archive = source.fetch(tmp_path)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == source.ARCHIVE_SHA256
    assert (source.unpack(archive, tmp_path) / "horovod/torch/mpi_ops_v2.cc").is_file()


def test_an_archive_that_was_cut_short_in_the_cache_is_fetched_again(archive: Path, tmp_path: Path) -> None:
    (tmp_path / source.ARCHIVE_NAME).write_bytes(archive.read_bytes()[:1000])
    assert source.fetch(tmp_path).read_bytes() == archive.read_bytes()


def test_an_archive_in_the_cache_is_used_without_the_network(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / source.ARCHIVE_NAME).write_bytes(archive.read_bytes())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    assert source.fetch(tmp_path) == tmp_path / source.ARCHIVE_NAME


def test_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ARCHIVE_SHA256", "0" * 64)
    with pytest.raises(BuildError, match=r"has another sha256 than hvdkit knows; check the package index"):
        source.fetch(tmp_path)
    assert not (tmp_path / source.ARCHIVE_NAME).exists()


def test_s10_no_code_of_another_archive_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, index = tmp_path / "seen", tmp_path / "index"
    folder = tmp_path / f"horovod-{source.HOROVOD_VERSION}"
    folder.mkdir()
    index.mkdir()
    (folder / "setup.py").write_text(f"open({str(seen)!r}, 'w').close()\nfrom setuptools import setup\nsetup()\n")
    (folder / "PKG-INFO").write_text(f"Metadata-Version: 1.0\nName: horovod\nVersion: {source.HOROVOD_VERSION}\n")
    with tarfile.open(index / source.ARCHIVE_NAME, "w:gz") as archive:
        archive.add(folder, folder.name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(BuildError, match=r"has another sha256 than hvdkit knows"):
        source.fetch(tmp_path / "cache")
    assert not seen.exists()


def test_no_index_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(BuildError, match=r"cannot fetch horovod 0\.28\.1: the package index") as refusal:
        source.fetch(tmp_path)
    assert "\n" not in str(refusal.value)
