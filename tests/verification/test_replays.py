"""How far each run goes, and which files are there for those that go on."""

from __future__ import annotations

import pytest

from hvdkit.tools.verification.exemptions import left_out
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, KEPT, NONE, REPLAYED
from hvdkit.tools.verification.replays import replays
from hvdkit.tools.verification.resuming import plan_resumptions, resumed_updates
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.storage import Log

LAYOUT = Layout(2, 5, 4, 64, "float32")
DENSE, BATCH_NORM = ("0", "Linear"), ("1", "BatchNorm1d")


def known(*layers, randomness=NONE, on_cpu=True, reordered=False, synchronised=False):
    return {
        "layers": [DENSE, *layers],
        "randomness": randomness,
        "on_cpu": on_cpu,
        "reordered": reordered,
        "synchronised": synchronised,
    }


def test_rounding_is_measured_all_the_way_where_it_can_part_ranks_and_twin():
    assert replays("torch", LAYOUT, known())["rounded"] == 4
    assert replays("tf", LAYOUT, known())["rounded"] == 20
    assert replays("torch", LAYOUT, known(reordered=True))["rounded"] == 20
    assert replays("torch", LAYOUT, known(on_cpu=False))["rounded"] == 20
    assert replays("torch", Layout(3, 5, 4, 64, "float32"), known())["rounded"] == 20


@pytest.mark.parametrize("framework", ["torch", "tf", "keras"])
def test_whole_batches_are_replayed_where_they_must_be_their_parts(framework):
    def made(*layers, **others):
        return replays(framework, LAYOUT, known(*layers, **others))

    assert made()["whole"] == 4
    assert made(BATCH_NORM)["whole"] == 0
    assert made(BATCH_NORM, synchronised=True)["whole"] == 20
    assert made(randomness=KEPT)["whole"] == made(randomness=HIDDEN)["whole"] == 0
    assert made(randomness=REPLAYED)["quiet"] == made(randomness=REPLAYED)["whole"] == 4
    assert "quiet" not in made()
    assert made()["twin"] == made(BATCH_NORM)["twin"] == 20


@pytest.mark.parametrize("layout", [LAYOUT, Layout(2, 3, 2, 16, "float32"), Layout(2, 4, 1, 16, "float32")])
def test_runs_that_go_on_end_with_an_epoch(tmp_path, layout):
    checkpoints, ranks = tmp_path / "checkpoints", Log(str(tmp_path / "ranks-0"))
    checkpoints.mkdir()
    for epoch in sorted({1, layout.epochs - 1, layout.epochs}):
        (checkpoints / f"epoch-{epoch:04d}.pt").write_bytes(b"x" * 200)
    if layout.steps > 1:
        (tmp_path / "ranks-0" / "inside.pt").write_bytes(b"x")
    ranks.facts |= {"saved_inside": 2 * layout.steps - 1, "epochs": []}
    plans = {plan.name: plan for plan in plan_resumptions(str(tmp_path), layout, None, ranks)}
    assert list(plans) == [*(["inside"] if layout.steps > 1 else []), "first", "later"]
    assert sum(plan.epochs * layout.steps - plan.update for plan in plans.values()) == resumed_updates(layout)
    last = layout.epochs
    assert plans["later"].keeps == (f"epoch-{last - 1:04d}.pt", f"epoch-{last:04d}.pt")
    left = sorted(path.name for path in (tmp_path / "resume-later").iterdir())
    assert left == [f".epoch-{last:04d}.pt.tmp", "epoch-0001.pt", f"epoch-{last - 1:04d}.pt"]
    assert [path.name for path in (tmp_path / "resume-first").iterdir()] == ["epoch-0001.pt"]


@pytest.mark.parametrize(("randomness", "claims"), [(REPLAYED, []), (FROZEN, ["dropout"])])
def test_dropout_that_the_twin_draws_again_is_checked_beside_batchnorm_too(tmp_path, randomness, claims):
    facts = {"precision": "fp32", "compression": "none", "observers": 0}
    log = Log(str(tmp_path))
    seen = Runs(
        framework="keras",
        layout=LAYOUT,
        known={**known(BATCH_NORM, randomness=randomness), **facts},
        ranks=[log],
        twin=log,
        rounded=log,
        whole=log,
        resumed=[],
        local_statistics=["1"],
        random=False,
        dropout=True,
    )
    assert [check.claim for check in left_out(seen)] == claims
