"""The folder of checkpoints is tried, claimed and tidied before anything is trained."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hvdkit.errors import CheckpointError
from hvdkit.job import checkpoint_folder
from hvdkit.job.checkpoint_folder import claim, release

HOLDING = (
    "import sys, time\n"
    "from hvdkit.job.checkpoint_folder import claim\n"
    "claim(sys.argv[1])\n"
    "print('claimed', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def nothing_claimed(monkeypatch):
    held = {}
    monkeypatch.setattr(checkpoint_folder, "_claimed", held)
    yield
    for descriptor in held.values():
        os.close(descriptor)


def test_a_folder_is_made_and_may_be_claimed_again(tmp_path):
    folder = str(tmp_path / "new" / "checkpoints")
    assert claim(folder) == claim(folder) == 0
    assert os.path.isdir(folder)


def test_what_a_killed_job_left_half_written_is_removed(tmp_path):
    (tmp_path / ".epoch-0003.pt.77.tmp").write_bytes(b"half")
    (tmp_path / "epoch-0002.pt").write_bytes(b"whole")
    (tmp_path / ".notes.tmp").write_bytes(b"mine")
    assert claim(str(tmp_path)) == 1
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"epoch-0002.pt", ".notes.tmp", ".hvdkit-lock"}


@pytest.mark.processes
def test_s13_a_second_job_is_refused_as_long_as_the_first_runs(tmp_path):
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "claimed\n"
        with pytest.raises(CheckpointError, match=rf"in use by a job that runs \(.*, process {first.pid}\)"):
            claim(str(tmp_path))
        first.communicate()
    assert claim(str(tmp_path)) == 0
    release(str(tmp_path))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as second:
        assert second.stdout.readline() == "claimed\n"
        second.communicate()


def test_s13_a_folder_that_cannot_be_made_is_found_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be written to .*file/checkpoints: Not a directory"):
        claim(str(tmp_path / "file" / "checkpoints"))


def test_s13_a_full_disk_is_found_at_once(tmp_path):
    (tmp_path / ".hvdkit-lock").symlink_to("/dev/full")
    with pytest.raises(CheckpointError, match=r"No space left on device|Invalid argument"):
        claim(str(tmp_path))
