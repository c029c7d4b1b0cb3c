"""What ``hvdkit verify`` says of scripts that cannot be verified: one line, and exit code 2."""

from __future__ import annotations

import pytest
from ranks import on
from script_runs import verify_script

from hvdkit.tools.verification.scripts.session import is_cause

pytestmark = pytest.mark.processes

KNOWN_BEFORE = {
    "plain": ("import torch\n", (), "does not use hvdkit"),
    "broken": ("import hvdkit.torch as hk\nif\n", (), "line 2 is not Python"),
    "two": ("import hvdkit.torch\nimport hvdkit.keras\n", (), "the verbs of keras and torch"),
    "alone": ("import hvdkit.torch as hk\n", ("-np", "1"), "needs at least 2"),
}


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
@pytest.mark.parametrize("name", KNOWN_BEFORE)
def test_what_is_known_before_anything_starts(name, combination, tmp_path):
    text, flags, words = KNOWN_BEFORE[name]
    (tmp_path / "train.py").write_text(text)
    report, finished = verify_script("train.py", combination, tmp_path, *flags)
    assert (report, finished.code) == (None, 2)
    (line,) = finished.stderr.splitlines()
    assert words in line


@pytest.mark.slow
@pytest.mark.parametrize("combination", on("torch", ("torch",)))
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "import hvdkit.torch as hk\nhk.init()\nraise KeyError('sizes')\n",
            "ends with an error on one process: KeyError",
        ),
        ("import hvdkit.torch as hk\nhk.init()\nprint(1)\n", "never trains"),
    ],
)
def test_a_script_that_cannot_be_judged(text, words, combination, tmp_path):
    (tmp_path / "train.py").write_text(text)
    report, finished = verify_script("train.py", combination, tmp_path)
    assert (report, finished.code) == (None, 2)
    assert words in finished.stderr.splitlines()[-1]
    assert "Traceback" not in finished.stderr


def test_what_one_rank_says_is_the_cause_if_the_job_ended_with_it():
    said = "rank 1 gives shard other data than rank 0: the ranks' samples differ;\n give all of them the same"
    assert is_cause(said, f"rank 0: DataError: {' '.join(said.split())}"[:120])
    assert not is_cause("rank 1 failed: its process is gone", "rank 1: killed by SIGKILL")
    assert not is_cause("", "rank 1: killed by SIGKILL")
