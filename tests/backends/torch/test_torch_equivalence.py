"""N processes against one process on the whole global batch, and against their bit-exact twin."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
THREE = on("torch", engines=("mpi",), sizes=(3,))
# optimizer, samples, batch per process, epochs, settings of distribute: 20 updates or more
CASES = {
    "sgd": (hvdkit.SGD(lr=0.1), 40, 4, 4, {}),
    "momentum": (hvdkit.SGD(lr=0.1, momentum=0.9), 40, 4, 4, {}),
    "nesterov": (hvdkit.SGD(lr=0.1, momentum=0.9, nesterov=True), 40, 4, 4, {}),
    "adam": (hvdkit.Adam(lr=0.01), 40, 4, 4, {}),
    "adam_with_decay": (hvdkit.Adam(lr=0.01, weight_decay=0.01), 40, 4, 4, {}),
    "adamw": (hvdkit.AdamW(lr=0.01, weight_decay=0.1), 40, 4, 4, {}),
    "adagrad": (hvdkit.Adagrad(lr=0.05), 40, 4, 4, {}),
    "sgd_with_decay": (hvdkit.SGD(lr=0.1, momentum=0.9, weight_decay=0.01), 40, 4, 4, {}),
    "d14_clipped": (hvdkit.SGD(lr=0.1), 40, 4, 4, {"clip_norm": 0.3}),
    "d15_ten_passes_by_four": (hvdkit.Adam(lr=0.01), 80, 4, 7, {"accumulate": 4}),
    "accumulated_and_clipped": (hvdkit.SGD(lr=0.1, momentum=0.9), 80, 4, 7, {"accumulate": 4, "clip_norm": 0.3}),
    "uneven_ends_of_3_and_2": (hvdkit.SGD(lr=0.1, momentum=0.9), 21, 4, 7, {}),
    "a_rank_without_a_sample_at_the_end": (hvdkit.Adam(lr=0.01), 17, 4, 7, {}),
}
BANDS = {"float64": 1e-10, "float32": 1e-4}


def check(results, dtype):
    """Every rank has the same distance and the same bits."""
    (distance, digest), *others = results
    assert distance <= BANDS[dtype]
    assert all(other == (distance, digest) for other in others)


@pytest.mark.parametrize("dtype", BANDS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_two_processes_equal_one_on_the_global_batch(ranks, case, dtype):
    def body(source, count, batch, epochs, settings):
        import torch
        from torch_cases import compare, mlp

        return compare(mlp, source, getattr(torch, dtype), count, batch, epochs, **settings)[:2]

    check(ranks.run(body, *CASES[case]), dtype)


@pytest.mark.parametrize("ranks", THREE, indirect=True)
def test_three_processes_with_ends_of_3_3_and_2_equal_one(ranks):
    def body():
        import torch
        from torch_cases import compare, mlp

        return compare(mlp, hvdkit.Adam(lr=0.01), torch.float64, 32, 4, 7)[:2]

    check(ranks.run(body), "float64")


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_300_adam_steps_equal_their_twin_bit_for_bit(ranks):
    def body():
        import torch
        from torch.nn.functional import cross_entropy
        from torch_cases import digest, distributed, mlp, samples

        from hvdkit.recipe.plan import ShardPlan

        data = samples(60, torch.float32)
        model, twin = mlp(torch.float32), mlp(torch.float32)
        distributed(model, torch.optim.Adam(model.parameters()), data, 3, 30)
        optimizer = torch.optim.Adam(twin.parameters())
        x, y = (torch.from_numpy(part) for part in data)
        plan = ShardPlan(60, 3, 2, seed=1)
        for epoch in range(30):
            for parts in zip(plan.micro_batches(epoch, 0), plan.micro_batches(epoch, 1), strict=True):
                for part in parts:
                    (cross_entropy(twin(x[part.indices]), y[part.indices]) / 2).backward()
                optimizer.step()
                optimizer.zero_grad()
        return digest(model), digest(twin)

    (mine, twin), (other, _) = ranks.run(body)
    assert mine == other == twin


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_ranks_agree_after_every_step_from_the_first_one_on(ranks):
    def body():
        import torch
        from torch_cases import digest, mlp, rank

        import hvdkit.torch as hk

        model = mlp(torch.float32, seed=rank())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (rank() + 1))
        hk.distribute(optimizer, model, clip_norm=1.0)
        hk.broadcast(model, optimizer)
        digests = [digest(model, optimizer)]
        torch.manual_seed(rank())
        for _ in range(5):
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            digests.append(digest(model, optimizer))
        return digests

    first, second = ranks.run(body)
    assert first == second
    assert len(set(first)) == 6


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_gradients_are_reduced_when_backward_returns(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        same = hk.distribute(optimizer, model)
        model(torch.full((1, 2), float(rank() + 1))).sum().backward()
        return same is optimizer, type(same) is torch.optim.SGD, model.weight.grad

    for same, plain, gradient in ranks.run(body):
        assert same
        assert plain
        assert gradient.tolist() == [[1.5, 1.5]]


@pytest.mark.parametrize("kind", ["LBFGS", "SGD"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_losses_of_closures_are_averaged_so_that_line_searches_agree(ranks, kind):
    def body():
        import torch
        from torch.nn.functional import cross_entropy
        from torch_cases import clip, digest, distance, flat, mlp, rank, samples

        import hvdkit.torch as hk

        def make(seed):
            model = mlp(seed=seed)
            options = {"line_search_fn": "strong_wolfe", "max_iter": 5} if kind == "LBFGS" else {}
            return model, getattr(torch.optim, kind)(model.parameters(), lr=0.3, **options)

        (model, optimizer), (reference, plain) = make(rank()), make(0)
        start = flat(reference)
        hk.distribute(optimizer, model, clip_norm=0.5)
        hk.broadcast(model, optimizer)
        x, y = (torch.from_numpy(part) for part in samples(16))
        half = slice(8 * rank(), 8 * rank() + 8)

        def ours():
            optimizer.zero_grad()
            loss = cross_entropy(model(x[half]), y[half])
            loss.backward()
            return loss

        def whole():
            plain.zero_grad()
            loss = cross_entropy(reference(x), y)
            loss.backward()
            clip(reference, 0.5)
            return loss

        losses = [(float(optimizer.step(closure=ours)), float(plain.step(whole))) for _ in range(4)]
        return distance(model, reference, start), digest(model), losses

    (distance, bits, losses), (_, others, other_losses) = ranks.run(body)
    assert bits == others
    assert losses == other_losses
    assert [mine for mine, _ in losses] == pytest.approx([single for _, single in losses], rel=1e-6)
    assert distance < 1e-6


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_models_in_half_precision_are_reduced(ranks, kind):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        model = torch.nn.Linear(2, 1, bias=False, dtype=getattr(torch, kind))
        hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        model(torch.full((1, 2), rank() + 1.0, dtype=getattr(torch, kind))).sum().backward()
        return model.weight.grad.float(), str(model.weight.grad.dtype)

    for gradient, dtype in ranks.run(body):
        assert gradient.tolist() == [[1.5, 1.5]]
        assert dtype == f"torch.{kind}"
