"""What a report says, for people and for programs."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from hvdkit.tools.verification.report import Check, Report

GOOD = Check("init", "ranks know each other", True, "2 ranks")
UNMADE = Check("average", "statistics agree", None, "not made: no data")
BAD = Check("distribute", "one average", False, "update 1: w", float("nan"), 0.1, "w", 1, "10 x rounding")


def report(*checks, **options):
    return Report("recipe.py", "torch", "mpi", 2, 6, "float32", list(checks), **options)


@pytest.mark.parametrize(
    ("found", "passed", "verdict"),
    [
        (report(GOOD), True, "verified: 2 processes compute what one would"),
        (report(GOOD, UNMADE), True, "verified, but for statistics agree: 2 processes compute what one would"),
        (report(GOOD, BAD, BAD), False, "failed: step 'distribute' is at fault: update 1: w"),
        (report(error="rank 1 crashed"), False, "failed: rank 1 crashed"),
        (report(GOOD, error="rank 1 crashed"), False, "failed: rank 1 crashed"),
    ],
)
def test_the_verdict_is_one_line(found, passed, verdict):
    assert (found.passed, found.verdict()) == (passed, verdict)
    assert json.loads(found.as_json())["passed"] is passed


def test_json_has_no_number_that_json_lacks():
    content = json.loads(report(GOOD, BAD).as_json(), parse_constant=lambda name: pytest.fail(name))
    assert content["fault"] == content["checks"][1]
    assert (content["fault"]["size"], content["fault"]["limit"], content["fault"]["update"]) == (None, 0.1, 1)


def test_people_see_every_check_and_exemption(capsys):
    report(GOOD, UNMADE, exemptions=["BatchNorm: each rank's own"]).show(Console(width=200))
    shown = capsys.readouterr().out
    left_out = "statistics agree (not made: no data)"
    exempt = "exempt: BatchNorm: each rank's own"
    for words in ("ranks know each other", exempt, f"not checked: {left_out}", "verified, but for"):
        assert words in shown
    assert json.loads(report(GOOD, UNMADE).as_json())["not_checked"] == [left_out]


def test_a_limit_is_shown_with_where_it_comes_from(capsys):
    report(BAD).show(Console(width=200))
    assert "1.0e-01: 10 x rounding" in capsys.readouterr().out
