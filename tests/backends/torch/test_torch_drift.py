"""Steps that a script forgets are found by what they lead to: weights that differ between ranks."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi"))


@pytest.mark.parametrize(
    "forgotten", ["nothing", "broadcast", "distribute", "both", "added by hand", "changed on one rank", "late"]
)
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "LBFGS"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r35_a_forgotten_step_is_named_at_the_first_update(ranks, forgotten, optimizer):
    def body():
        import torch
        from torch_cases import complaint, mlp, rank, samples

        import hvdkit.torch as hk
        from hvdkit.training import drift as neutral

        made = {"SGD": {"lr": 0.1, "momentum": 0.9}, "Adam": {}, "LBFGS": {"max_iter": 3}}[optimizer]
        taken = []

        def train():
            world = hk.init()
            model = mlp(seed=rank() if forgotten in ("broadcast", "both") else 0)
            optim = getattr(torch.optim, optimizer)(model.parameters(), **made)
            if forgotten not in ("distribute", "both"):
                hk.distribute(optim, model)
            if forgotten not in ("broadcast", "both"):
                hk.broadcast(model, optim)
            for step, (x, y) in enumerate(hk.shard(samples(64), 4)):

                def closure(x=x, y=y):
                    optim.zero_grad()
                    loss = torch.nn.functional.cross_entropy(model(x), y)
                    loss.backward()
                    if forgotten == "added by hand":
                        for parameter in model.parameters():
                            parameter.grad += 0.01 * (1 + world.rank)
                    return loss

                if optimizer == "LBFGS":
                    optim.step(closure)
                else:
                    closure()
                    optim.step()
                if (forgotten == "changed on one rank" and world.rank == 1) or (
                    forgotten == "late" and step == 3 and world.rank == 1
                ):
                    with torch.no_grad():
                        model[0].weight[0, 0] += 1e-12
                taken.append(step)

        every, neutral.EVERY = neutral.EVERY, 6
        try:
            return complaint(train), len(taken)
        finally:
            neutral.EVERY = every

    results = ranks.run(body)
    assert results[0] == results[1]
    text, steps = results[0]
    expected = {
        "nothing": ("", 8),
        "broadcast": ("before the first update: '0.weight' on rank 0 is not that on rank 1; call broadcast", 0),
        "both": ("before the first update", 0),
        "distribute": ("after 1 updates: '0.weight' on rank 0 is not that on rank 1; call distribute", 0),
        "added by hand": ("after 1 updates", 0),
        "changed on one rank": ("after 6 updates", 5),
        "late": ("after 6 updates", 5),
    }[forgotten]
    if forgotten == "nothing" or optimizer != "LBFGS" or steps == 0:
        assert expected[0] in text
        assert steps == expected[1]
    else:
        assert "differ between ranks" in text


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r35_optimizers_that_are_each_ranks_own_are_left_alone(ranks):
    def body():
        import torch
        from torch_cases import complaint, mlp, rank

        import hvdkit.torch as hk

        def train():
            hk.init()
            model = mlp(seed=rank())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(1 + rank()):
                model(torch.ones(2, 6, dtype=torch.float64)).sum().backward()
                optimizer.step()

        return complaint(train)

    assert ranks.run(body) == ["", ""]


@pytest.mark.parametrize("sharded", [False, True], ids=["not sharded", "sharded"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r35_ranks_that_train_on_the_same_samples_are_told_so(ranks, sharded):
    def body():
        import contextlib
        import io

        import torch
        from torch_cases import mlp, samples

        import hvdkit.torch as hk

        model = mlp()
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        x, y = samples(16)
        batches = hk.shard((x, y), 4) if sharded else [(torch.from_numpy(x[:4]), torch.from_numpy(y[:4]))] * 2
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            for inputs, targets in batches:
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
        return said.getvalue()

    first, second = ranks.run(body)
    assert second == ""
    assert ("all ranks had the same gradients" in first) == (not sharded)
    assert first.count("\n") == (0 if sharded else 1)


@pytest.mark.parametrize("way", ["drawn anew", "moved by hand", "not broadcast"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r35_weights_that_drifted_apart_are_neither_saved_nor_evaluated(ranks, way, tmp_path):
    def body(folder):
        from pathlib import Path

        import torch
        from torch_cases import complaint, mlp, rank, samples

        import hvdkit.torch as hk

        world = hk.init()
        model = mlp(seed=rank() if way == "not broadcast" else 0)
        data, path = samples(16), f"{folder}/file.pt"
        if way != "not broadcast":
            hk.broadcast(model)
            hk.save(path, model)
        before = Path(path).read_bytes() if way != "not broadcast" else b""
        with torch.no_grad():
            if way == "drawn anew":
                torch.manual_seed(7 + rank())
                model[0].reset_parameters()
            elif way == "moved by hand":
                for x, y in hk.shard(data, 4):
                    model.zero_grad()
                    with torch.enable_grad():
                        torch.nn.functional.cross_entropy(model(x), y).backward()
                    for parameter in model.parameters():
                        parameter -= 0.1 * parameter.grad
        said = [
            complaint(hk.save, path, model),
            complaint(hk.evaluate, model, data, "accuracy", loss="cross_entropy"),
            complaint(hk.synchronise_statistics, model),
        ]
        world.barrier()
        after = Path(path).read_bytes() if Path(path).exists() else b""
        world.barrier()
        hk.init(guard=False)
        try:
            unguarded = complaint(hk.save, path, model)
        finally:
            hk.init(guard=True)
        return said, before == after, unguarded

    first, second = ranks.run(body, str(tmp_path))
    assert first == second
    said, same_file, unguarded = first
    for text in said:
        assert "the weights differ between ranks when they are used: '0.weight' on rank 0 is not that on rank 1" in text
        assert ("call broadcast(model, optimizer)" in text) == (way == "not broadcast")
    assert same_file
    assert unguarded == ""
