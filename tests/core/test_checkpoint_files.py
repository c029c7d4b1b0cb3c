"""Files are whole or not there, and nothing is unpickled."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from ranks import launch_fresh

from hvdkit.errors import CheckpointError
from hvdkit.job import files as checkpoint

KILLED_WHILE_SAVING = """
import os, signal, sys
from hvdkit.job.files import write_atomically

def write(temporary):
    with open(temporary, "wb") as file:
        file.write(b"half of it")
        file.flush()
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(28, "No space left on device")

write_atomically(sys.argv[1], write)
"""


def test_arrays_and_state_come_back_and_plain_numpy_opens_the_file(tmp_path):
    arrays = {"layer/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(3)}
    checkpoint.write_arrays(tmp_path / "a.npz", arrays, {"epoch": 2, "names": ["x"]})
    content, state = checkpoint.read_arrays(tmp_path / "a.npz")
    assert state == {"epoch": 2, "names": ["x"]}
    assert all(np.array_equal(content[name], arrays[name]) for name in arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["layer/kernel"], arrays["layer/kernel"])


@pytest.mark.processes
def test_e03_killed_while_saving_leaves_the_old_file_and_a_stray_one_that_is_known(tmp_path):
    path = checkpoint.epoch_path(str(tmp_path), 1, "npz")
    checkpoint.write_arrays(path, {"w": np.ones(3)}, {"epoch": 1})
    done = launch_fresh(KILLED_WHILE_SAVING, args=[str(path), "kill"])
    assert done.code == -signal.SIGKILL
    assert checkpoint.read_arrays(path)[1] == {"epoch": 1}
    assert checkpoint.epoch_files(str(tmp_path), "npz") == [path]
    assert len(checkpoint.stray_files(str(tmp_path))) == 1


@pytest.mark.processes
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "epoch-0001.npz"
    path.write_bytes(b"old")
    done = launch_fresh(KILLED_WHILE_SAVING, args=[str(path), "full"])
    assert "No space left on device" in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["epoch-0001.npz"]
    assert path.read_bytes() == b"old"


def test_files_are_found_in_the_order_of_their_epochs(tmp_path):
    order = ["epoch-0002.pt", "epoch-0002-step-00000900.pt", "epoch-0010.pt", "epoch-10000.pt"]
    for name in ("epoch-0003.npz", ".epoch-0011.pt.7.tmp", "x.pt", "best.pt", *reversed(order)):
        (tmp_path / name).touch()
    names = [path.name for path in checkpoint.epoch_files(str(tmp_path), "pt")]
    assert names == order
    assert checkpoint.epoch_files(str(tmp_path / "nowhere"), "pt") == []


@pytest.mark.parametrize("damage", ["short", "empty", "other", "missing"])
def test_a_damaged_file_is_one_line(tmp_path, damage):
    path = tmp_path / "epoch-0001.npz"
    checkpoint.write_arrays(path, {"w": np.ones(300)}, {"epoch": 1})
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"short": content[:500], "empty": b"", "other": b"PK\x03\x04 not an archive"}[damage])
    with pytest.raises(CheckpointError) as caught:
        checkpoint.read_arrays(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pickled_array_is_refused(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    np.savez(tmp_path / "trap.npz", trap=np.array([Trap()], dtype=object), **{"state.json": np.zeros(2, np.uint8)})
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.read_arrays(tmp_path / "trap.npz")
    assert not (tmp_path / "sprung").exists()


def test_state_that_is_not_plain_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match="numbers, strings, lists and dicts"):
        checkpoint.write_arrays(tmp_path / "a.npz", {}, {"bad": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_saved_global_batch_is_kept_or_refused_with_the_numbers_that_divide_it():
    assert checkpoint.batch_for(128, 2, 1) == 64
    assert checkpoint.batch_for(128, 1, 4) == 32
    with pytest.raises(CheckpointError, match=r"global batch of 12, which 5 processes cannot share.*1, 2, 3, 4, 6, 12"):
        checkpoint.batch_for(12, 5, 1)
