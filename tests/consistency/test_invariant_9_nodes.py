"""Invariant 9: on two nodes of two processes each, ``rank`` decides on shards, seeds and files.

Devices by local rank: tests/core/test_device_index.py; only global rank 0 writes: tests/core/test_control_faults.py.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from ranks import launch_fresh, on

import hvdkit

SCRIPT = """
import json, os, sys
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
os.environ["HVDKIT_NODE"] = f"host{rank // 2}"
import numpy as np
import torch
import hvdkit
from hvdkit.training.observers import Observer

x = np.arange(22, dtype="float32").reshape(22, 1)

class Watch(Observer):
    def on_fit_begin(self, trainer):
        self.inputs = []
        trainer.model.register_forward_pre_hook(lambda _, inputs: self.inputs.append(inputs[0][:, 0].tolist()))

watch = Watch()
recipe = hvdkit.Recipe(
    model=lambda: torch.nn.Linear(1, 2), data=hvdkit.Data(train=(x, np.zeros(22, int))), optimizer=hvdkit.SGD(0.001),
    batch_size=2, checkpoint=hvdkit.Checkpoint(f"{sys.argv[1]}/{rank}"), observers=(watch,), init=hvdkit.Init("mpi"),
)
trainer = hvdkit.apply(recipe, "torch")
trainer.fit(1)
world, batches = trainer.world, trainer.batches
found = [world.local_rank, world.local_size, world.node, world.nodes, watch.inputs, torch.rand(1).item()]
print(json.dumps([world.rank, found]) + "\\n", end="", flush=True)
"""
COLLECTIVES = {"allreduce", "allgather", "alltoall", "barrier", "broadcast", "broadcast_object", "agree", "root_only"}


@pytest.mark.parametrize("combination", on("torch", engines=("mpi",), sizes=(4,)))
def test_shards_seeds_and_files_go_by_rank(combination, tmp_path):
    done = launch_fresh(SCRIPT, "mpi", combination.size, [str(tmp_path)])
    assert done.code == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    ranks = [found for _, found in sorted(json.loads(line) for line in lines)]
    assert [found[:4] for found in ranks] == [[0, 2, 0, 2], [1, 2, 0, 2], [0, 2, 1, 2], [1, 2, 1, 2]]
    # full updates of 8 samples, each on one rank; the last has 6, of which ranks 2 and 3 have one each
    full = [value for found in ranks for batch in found[4][:2] for value in batch]
    assert [[len(batch) for batch in found[4]] for found in ranks] == [[2, 2, 2]] * 2 + [[2, 2, 1]] * 2
    last = [value for found in ranks for value in found[4][2]]
    assert sorted(full + last) == list(range(22))
    assert len({found[5] for found in ranks}) == 4
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.pt")] == ["0/epoch-0001.pt"]


def test_no_collective_stands_inside_a_condition_on_the_rank():
    package = Path(hvdkit.__file__).parent
    found = []
    for path in [*package.rglob("*.py"), *(package.parent / "examples").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If) and _asks_for_rank(node.test):
                calls = [inner for part in (*node.body, *node.orelse) for inner in ast.walk(part) if _collective(inner)]
                found += [f"{path.relative_to(package.parent)}:{call.lineno}" for call in calls]
    assert found == []


def test_the_search_finds_one():
    tree = ast.parse("if world.is_root:\n    world.barrier()")
    (condition,) = tree.body
    assert _asks_for_rank(condition.test)
    assert any(_collective(node) for node in ast.walk(condition))


def _asks_for_rank(test):
    return any(isinstance(node, ast.Attribute) and node.attr in ("rank", "is_root") for node in ast.walk(test))


def _collective(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COLLECTIVES
