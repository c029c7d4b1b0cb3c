"""What ``hvdkit verify`` refuses before any process starts: one line, exit code 2, within seconds."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from limits import HANG_SECONDS
from rank_jobs import environment

pytestmark = pytest.mark.processes

FILES = {
    "right.py": "import hvdkit\nbig = hvdkit.Recipe(model='mnist_cnn', data=None)\nother = big.replace(seed=1)\n",
    "cut.py": "import hvdkit\nrecipe = hvdkit.Recipe(\n",
    "binary.py": "\0",
    "unused.py": "raise SystemExit('this file must not run')\nrecipe = None\n",
}
PACKAGES = {"torch": "torch", "tf": "tensorflow"}
INSTALLED = [name for name, package in PACKAGES.items() if importlib.util.find_spec(package)]
MISSING = sorted(set(PACKAGES) - set(INSTALLED))
ANY = INSTALLED[0] if INSTALLED else None


def refusal(folder: Path, file: str, *flags: str) -> str:
    """Return the one line, and check that it is all there is."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "hvdkit", "verify", str(folder / file) if file else "", *flags]
    finished = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS)
    assert finished.returncode == 2, finished.stdout + finished.stderr
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    return finished.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(ANY is None, reason="no framework is installed")
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("none.py", "does not exist"),
        ("right.py", "has no 'recipe'; it has big, other; name another with right.py:NAME"),
        ("right.py:small", "has no 'small'"),
        ("cut.py", "cut.py, line 2 is not Python"),
        ("binary.py", "binary.py is not Python"),
    ],
)
def test_a_file_without_a_recipe(file, words, tmp_path: Path):
    assert words in refusal(tmp_path, file, "--framework", str(ANY))


@pytest.mark.skipif(ANY is None, reason="no framework is installed")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-np", "1"), "np must be at least 2"),
        (("--steps", "0"), "steps at least 1"),
        (("--engine", "mpirun"), "engine 'mpirun' is unknown"),
        (("--engine", "serial"), "engine serial is one process, not 2"),
    ],
)
def test_arguments_that_are_wrong(flags, words, tmp_path: Path):
    assert words in refusal(tmp_path, "unused.py", "--framework", str(ANY), *flags)


@pytest.mark.tf
@pytest.mark.skipif("torch" not in INSTALLED or "tf" not in INSTALLED, reason="needs torch and TensorFlow")
def test_an_engine_that_does_not_carry_the_framework_s_tensors(tmp_path: Path):
    words = "engine 'torch' cannot carry tensors of 'tf'; use one of horovod, mpi"
    assert words in refusal(tmp_path, "unused.py", "--framework", "tf", "--engine", "torch")


@pytest.mark.skipif(not MISSING, reason="all frameworks are installed")
def test_a_framework_that_is_not_installed(tmp_path: Path):
    name = MISSING[0]
    assert f"pip install 'hvdkit[{name}]'" in refusal(tmp_path, "unused.py", "--framework", name)
    if ANY is not None:
        assert f"framework '{name}' needs" in refusal(tmp_path, "unused.py", "--across", f"{ANY},{name}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "to verify a recipe, give --framework"),
        (("--across", "torch"), "give two or three different frameworks"),
        (("--across", "torch,torch"), "give two or three different frameworks"),
        (("--framework", "caffe"), "'caffe' is not one of 'torch', 'tf', 'keras'"),
    ],
)
def test_what_is_to_be_compared(flags, words, tmp_path: Path):
    assert words in refusal(tmp_path, "unused.py", *flags)
