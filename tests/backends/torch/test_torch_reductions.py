"""Division before the sum, and Adasum."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rank_jobs import beside
from ranks import Combination, launch_fresh, on, unavailable

from hvdkit.engines.horovod.installed import mpi_built

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_the_average_is_the_same_wherever_it_is_divided(ranks):
    def body(factor, compression):
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        weight = torch.nn.Parameter(torch.zeros(2, 3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        hk.distribute(optimizer, gradient_predivide=factor, compression=compression)
        (weight * (1.0 + rank())).sum().backward()
        small = weight.grad.clone()
        optimizer.zero_grad()
        (weight * 4e-8).sum().backward()
        return small, weight.grad[0, 0].item()

    for factor in (0.5, 1.0, 2.0, 8.0):
        for reduced, _ in ranks.run(body, factor, "none"):
            assert reduced == pytest.approx(np.full((2, 3), 1.5), rel=1e-6)
    if ranks.engine != "mpi":
        for factor, kept in ((0.5, True), (16.0, False)):
            for reduced, small in ranks.run(body, factor, "fp16"):
                assert reduced == pytest.approx(np.full((2, 3), 1.5), rel=1e-3)
                # half precision's smallest number is 6e-8, and what is divided less stays above its half
                assert (small > 0) == kept


@pytest.mark.parametrize("ranks", on("torch", engines=("torch", "mpi", "horovod")), indirect=True)
def test_adasum_is_refused_where_no_mpi_moves_horovods_data(ranks):
    def body():
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        return complaint(hk.distribute, optimizer, reduction="adasum")

    for text in ranks.run(body):
        assert text == (
            f"EngineError: engine '{ranks.engine}' has no Adasum here; "
            "use Horovod built with MPI, started by mpirun, for torch"
        )


ADASUM = """
import json, sys
import torch
import hvdkit.torch as hk

world = hk.init("horovod")
torch.manual_seed(0)
model = torch.nn.ModuleDict({
    "a": torch.nn.Linear(3, 2).to(torch.float64), "b": torch.nn.Conv2d(2, 3, 2, bias=False).double(),
    "unused": torch.nn.Linear(2, 2)})
model.to(memory_format=torch.channels_last)
optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model, reduction="adasum")
torch.manual_seed(world.rank + 1)
x, y = torch.randn(4, 3).double(), torch.randn(2, 2, 3, 3).double()
def loss():
    return model["a"](x).square().sum() + model["b"](y).square().sum()
used = [p for name, p in model.named_parameters() if "unused" not in name]
own = torch.autograd.grad(loss(), used)
loss().backward()
rows = world.engine.allgather_object(([g.tolist() for g in own], [p.grad.tolist() for p in used]))
if world.rank == 0:
    print(json.dumps(rows), model["unused"].weight.grad is None)
"""
_reason = unavailable(Combination("torch", "horovod", 2)) or (
    None if mpi_built() and beside("mpiexec") else "Horovod was built without MPI, or there is no mpiexec"
)


@pytest.mark.horovod
@pytest.mark.torch
@pytest.mark.processes
@pytest.mark.skipif(bool(_reason), reason=str(_reason))
def test_adasum_of_two_ranks_is_the_formula_for_each_parameter():
    done = launch_fresh(ADASUM, engine="mpi", size=2)
    assert done.code == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("["))
    (own_0, reduced_0), (own_1, reduced_1) = json.loads(line.rpartition(" ")[0])
    assert line.endswith("True")
    for first, second, one, other in zip(own_0, own_1, reduced_0, reduced_1, strict=True):
        a, b = np.array(first), np.array(second)
        dot = (a * b).sum()
        # Maleki et al. (2020), equation 3
        expected = (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b
        assert np.array(one) == pytest.approx(expected, rel=1e-9)
        assert one == other


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_the_sum_of_summed_losses_is_that_of_one_process(ranks):
    """Nine samples in batches of two on two ranks: the last rank repeats a sample, which must not count."""

    def body():
        import numpy as np
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        x = np.arange(9.0)
        model = torch.nn.Embedding(9, 3, sparse=True), torch.nn.Linear(1, 3, bias=False)
        module = torch.nn.ModuleList(model)
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        hk.distribute(optimizer, module, reduction="sum")
        totals = [torch.zeros(9, 3), torch.zeros(3, 1)]
        steps = 0
        for part in hk.shard((x, x), 2, shuffle=False):
            value = part.inputs.float()
            optimizer.zero_grad()
            rows = model[0](part.inputs.long()) * (1 + value[:, None])
            (rows + model[1](value[:, None])).sum().backward()
            for total, parameter in zip(totals, module.parameters(), strict=True):
                total += parameter.grad.to_dense()
            optimizer.step()
            steps += 1
        loss = model[1](torch.ones(1, 1)).sum()
        loss.backward(retain_graph=True)
        return steps, *totals, complaint(loss.backward)

    for steps, rows, dense, repeated in ranks.run(body):
        assert steps == 3
        assert "a second backward() before step()" in repeated
        np.testing.assert_allclose(rows, np.repeat(np.arange(1.0, 10.0)[:, None], 3, 1))
        np.testing.assert_allclose(dense, np.full((3, 1), 36.0))


@pytest.mark.parametrize("ranks", ENGINES[:1], indirect=True)
def test_a_sum_is_refused_where_it_would_be_a_mean(ranks):
    def body():
        import torch
        from torch_cases import complaint
        from torch_recipes import recipe

        import hvdkit
        import hvdkit.torch as hk

        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        return [
            complaint(hk.distribute, optimizer, reduction="sum", accumulate=2),
            complaint(hk.distribute, optimizer, reduction="sum", compression="fp16"),
            complaint(lambda: recipe(distribute=hvdkit.Distribute(reduction="sum"))),
        ]

    for accumulated, compressed, declared in ranks.run(body):
        assert "average where accumulate is set" in accumulated
        assert "average where compression or gradient_predivide is set" in compressed
        assert "average in a recipe, whose loss is the mean of a batch" in declared
