"""``hvdkit verify train.py`` for loops of one's own in torch."""

from __future__ import annotations

import pytest
from ranks import on
from script_runs import assert_named, assert_verified, edited, named, verify_script
from verify_runs import ROOT

pytestmark = pytest.mark.processes

CONVERTED = ("two_inputs", "gan", "lbfgs", "penalty", "unfreezing", "vae", "words", "")

# 52 samples on 2 ranks in batches of 4: the last update of an epoch is a short one
SCRIPT = """
import sys
import torch
from torch import nn
import hvdkit.torch as hk
from pathlib import Path

world = hk.init()
hk.pin()
torch.manual_seed(0)
x = torch.randn(52, 6)
y = (x.sum(1) > 0).long()
known = Path("known.txt").read_text()
batches = hk.shard((x, y), 4)
held = hk.shard((x[:11], y[:11]), 4, train=False)

model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), hk.scale_lr(0.05), momentum=0.9)
optimizer = hk.distribute(optimizer, model)
hk.broadcast(model, optimizer)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
loss_of = nn.functional.cross_entropy

for epoch in range(5):
    model.train()
    total, count = 0.0, 0
    for image, label in batches:
        optimizer.zero_grad()
        loss = loss_of(model(image), label)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        total, count = total + loss.item() * batches.count, count + batches.count
    mean = hk.average(total / count, count)
    found = hk.evaluate(model, held, "accuracy", loss=loss_of)
    if world.rank == 0:
        print(f"epoch {epoch + 1} of {sys.argv[1]}: loss {mean:.6f} val_loss {found['loss']:.6f}")

hk.save("weights.pt", model, optimizer)
"""

FAULTS = {
    "no init": ([("world = hk.init()", "world = type('World', (), {'rank': 0})()")], None, "not initialised"),
    "no shard": (
        [
            ("hk.shard((x, y), 4)", "type('B', (list,), {'count': 4})(zip(x.split(4), y.split(4)))"),
            ("batches.count", "len(image)"),
        ],
        "shard",
        "hk.shard is never called",
    ),
    "no distribute": (
        [("optimizer = hk.distribute(optimizer, model)\n", "")],
        "distribute",
        "hk.distribute is never called for optimizer 0 (SGD)",
    ),
    "no broadcast": ([("hk.broadcast(model, optimizer)\n", "")], "broadcast", "hk.broadcast is not called"),
    "a part is not broadcast": (
        [("hk.broadcast(model, optimizer)", "hk.broadcast(model[0])")],
        "broadcast",
        "hk.broadcast is not called",
    ),
    "rates by rank": (
        [("hk.scale_lr(0.05)", "0.05 * (1 + world.rank)"), ("hk.broadcast(model, optimizer)", "hk.broadcast(model)")],
        "scale_lr",
        "on rank 1",
    ),
    "a loss that is a sum": (
        [("cross_entropy", "cross_entropy;loss_of = lambda a, b: nn.functional.cross_entropy(a, b, reduction='sum')")],
        "recipe",
        "is the loss a sum",
    ),
    "a loss that is a sum, with BatchNorm": (
        [
            (
                "cross_entropy",
                "cross_entropy;loss_of = lambda a, b: nn.functional.cross_entropy(a, b, reduction='sum')",
            ),
            ("nn.Tanh()", "nn.BatchNorm1d(8)"),
        ],
        "recipe",
        "is the loss a sum",
    ),
    "the loss is a rank's own": (
        [("hk.average(total / count, count)", "total / count")],
        "average",
        "is rank 0's own",
    ),
    "the loss is a rank's own, with BatchNorm, and shown by all": (
        [
            ("hk.average(total / count, count)", "total / count"),
            ("if world.rank == 0:", "if True:"),
            ("nn.Tanh()", "nn.BatchNorm1d(8)"),
        ],
        "average",
        "on rank 1",
    ),
    "saved by every rank": (
        [("hk.save(", "torch.save(model.state_dict(), 'own.pt'); hk.save(")],
        "checkpoint",
        "rank 1 writes own.pt too",
    ),
    "gradients changed by rank": (
        [("        optimizer.step()", "        model[0].weight.grad.mul_(1 + world.rank)\n        optimizer.step()")],
        "distribute",
        "differs from rank 0's",
    ),
    "other data on each rank": (
        [("hk.shard((x, y), 4)", "hk.shard((x[world.rank::2], y[world.rank::2]), 4)")],
        "shard",
        "rank",
    ),
}
EVERY_TIME = ("no broadcast",)

LEGITIMATE = {
    "as it is": [],
    "no scale_lr, BatchNorm and random numbers": [
        ("hk.scale_lr(0.05)", "0.05"),
        ("nn.Tanh()", "nn.BatchNorm1d(8)"),
        ("model(image)", "model(image + 0.01 * torch.randn_like(image))"),
    ],
    "accumulate and clip": [
        ("hk.shard((x, y), 4)", "hk.shard((x, y), 4, accumulate=2)"),
        ("hk.distribute(optimizer, model)", "hk.distribute(optimizer, model, accumulate=2, clip_norm=0.1)"),
        ("        nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n", ""),
        ("        optimizer.zero_grad()\n", ""),
        (
            "        optimizer.step()\n",
            "        if not batches.last:\n            continue\n        optimizer.step(); optimizer.zero_grad()\n",
        ),
    ],
    "rates by the size, and Adam": [
        (
            "torch.optim.SGD(model.parameters(), hk.scale_lr(0.05), momentum=0.9)",
            "torch.optim.AdamW(model.parameters(), 0.001 * world.size)",
        ),
    ],
    "files of each rank": [("hk.save(", "Path(f'log-{world.rank}.txt').write_text('1'); hk.save(")],
    "sync_batchnorm": [
        ("nn.Tanh()", "nn.BatchNorm1d(8)"),
        ("(optimizer, model)\n", "(optimizer, model, sync_batchnorm=True)\n"),
    ],
}


@pytest.fixture
def folder(tmp_path):
    """A folder from which scripts are started; nothing may be written there."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "known.txt").write_text("1")
    (tmp_path / "home" / "weights.pt").write_bytes(b"mine")
    return tmp_path / "home"


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
@pytest.mark.parametrize("name", named(FAULTS, EVERY_TIME))
def test_a_forgotten_step_is_named(name, combination, folder):
    edits, step, words = FAULTS[name]
    (folder.parent / "train.py").write_text(edited(SCRIPT, *edits))
    report, finished = verify_script(folder.parent / "train.py", combination, folder, "--", "five")
    if step is None:
        assert finished.code == 2
        assert words in finished.stderr
    else:
        assert_named(report, finished, step, words)
    assert sorted(path.name for path in folder.iterdir()) == ["known.txt", "weights.pt"]
    assert (folder / "weights.pt").read_bytes() == b"mine"


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
@pytest.mark.parametrize("name", named(LEGITIMATE, ("as it is",)))
def test_a_right_script_is_verified(name, combination, folder):
    (folder.parent / "train.py").write_text(edited(SCRIPT, *LEGITIMATE[name]))
    report, finished = verify_script(folder.parent / "train.py", combination, folder, "--", "five")
    assert_verified(report, finished)
    assert sorted(path.name for path in folder.iterdir()) == ["known.txt", "weights.pt"]


@pytest.mark.parametrize("combination", on("torch", ("torch",)))
@pytest.mark.parametrize("name", named(CONVERTED, ("", "gan")))
def test_a_converted_script_is_verified(name, combination, folder):
    check_converted(name, combination, folder)


@pytest.mark.slow
@pytest.mark.parametrize("combination", [*on("torch", ("mpi",)), *on("torch", ("torch",), (3,))])
@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_script_is_verified_over_mpi_and_on_three_processes(name, combination, folder):
    check_converted(name, combination, folder)


def check_converted(name, combination, folder):
    script = ROOT / "examples" / "convert" / f"torch_{name}_hvdkit.py".replace("__", "_")
    report, finished = verify_script(script, combination, folder)
    assert_verified(report, finished)
