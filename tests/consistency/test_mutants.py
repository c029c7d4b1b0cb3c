"""``hvdkit verify`` on an hvdkit that is broken in one place: it must fail, and name the step at fault."""

from __future__ import annotations

import pytest
from mutants import MUTANTS
from ranks import on
from verify_runs import MUTANTS_FILE, run_verify

# one of an early, a middle and a late step, and one that is found in a resumed run alone
FIRST = ("same_shard", "gradient_a_thousandth_off", "validation_of_rank_0", "momentum_zero_after_reading")


def cases():
    """Return every mutant on its frameworks; four of them, in torch, run every time."""
    for entry in [*on("torch", ("mpi",)), *on("tf", ("mpi",)), *on("keras", ("mpi",))]:
        combination = entry.values[0]
        for name, mutant in MUTANTS.items():
            if combination.framework in mutant.frameworks:
                quick = combination.framework == "torch" and name in FIRST
                marks = [*entry.marks, *([] if quick else [pytest.mark.slow])]
                yield pytest.param(name, combination, marks=marks, id=f"{combination.framework}-{name}")


@pytest.mark.parametrize(("name", "combination"), list(cases()))
def test_a_mutant_is_caught_and_its_step_named(name, combination):
    shared = MUTANTS[name].step == "pin"
    report, finished = run_verify(f"{MUTANTS_FILE}:{name}", combination, "--steps", "6", threads_shared=shared)
    assert finished.code == 1, finished.stdout + finished.stderr
    assert report["error"] is None
    assert not report["passed"]
    assert report["fault"]["step"] == MUTANTS[name].step, report["fault"]
    assert report["fault"]["found"]
