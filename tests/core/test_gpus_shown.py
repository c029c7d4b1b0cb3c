"""Which GPUs CUDA shows to a process, as nvidia-smi lists them."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from hvdkit.job import gpus

LISTED = """\
GPU 0: NVIDIA H200 (UUID: GPU-aaaa-1)
  MIG 1g.18gb     Device  0: (UUID: MIG-cccc-3)
GPU 1: NVIDIA H200 (UUID: GPU-bbbb-2)
"""


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: SimpleNamespace(stdout=LISTED))


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("0,1", ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("1, 0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("1", ["GPU-bbbb-2"]),
        ("GPU-bbbb", ["GPU-bbbb-2"]),
        ("MIG-cccc-3", ["MIG-cccc-3"]),
        ("", []),
        ("-1", []),
        ("1,7,0", ["GPU-bbbb-2"]),
        ("NoDevFiles", []),
    ],
)
def test_l08_cuda_visible_devices_says_which_gpus_are_shown(two_gpus, monkeypatch, shown, expected):
    if shown is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert gpus.gpus_shown() == expected


def test_l08_a_machine_without_gpus_shows_none_whatever_the_variable_says(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: SimpleNamespace(stdout="No devices found.\n"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert gpus.gpus_shown() == []


def test_l08_without_nvidia_smi_gpus_are_counted_but_not_known(monkeypatch):
    def missing(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "run", missing)
    monkeypatch.setattr(gpus, "glob", lambda pattern: ["/dev/nvidia0", "/dev/nvidia1"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus.gpus_shown() == ["", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.gpus_shown() == [""]
