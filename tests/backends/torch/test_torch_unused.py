"""Parameters that are frozen, unused, used by some ranks, or sparse; memory formats."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))


def same_and_close(results):
    (distance, digest), *others = results
    assert distance <= 1e-10
    assert all(other == (distance, digest) for other in others)


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d12_frozen_layers_stay_and_layers_thawed_later_train(ranks):
    def body():
        import torch
        from torch_cases import compare, mlp

        def half_frozen(dtype, seed):
            model = mlp(dtype, seed)
            model[0].requires_grad_(False)
            return model

        def thaw(model, epoch):
            if epoch == 1:
                moved.append(bool((model[0].weight != mlp()[0].weight).any()))
                model[0].requires_grad_(True)

        moved = []
        settings = {"between_epochs": thaw, "accumulate": 2}
        distance, digest, model, _ = compare(half_frozen, hvdkit.AdamW(), torch.float64, 40, 4, 5, **settings)
        moved.append(bool((model[0].weight != mlp()[0].weight).any()))
        return distance, digest, moved

    results = ranks.run(body)
    same_and_close([(distance, digest) for distance, digest, _ in results])
    # frozen in the distributed and in the plain run, trained after that
    assert [moved for *_, moved in results] == [[False, False, True]] * 2


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d22_a_parameter_that_no_rank_uses_keeps_grad_none_and_its_value(ranks, accumulate):
    def body():
        import torch
        from torch_cases import WithUnused, compare

        def build(dtype, seed):
            torch.manual_seed(seed)
            return WithUnused().to(dtype)

        distance, digest, model, _ = compare(build, hvdkit.AdamW(), torch.float64, 40, 4, 5, accumulate=accumulate)
        untouched = torch.equal(model.unused.weight, build(torch.float64, 0).unused.weight)
        return distance, digest, model.unused.weight.grad is None, untouched

    results = ranks.run(body)
    same_and_close([entry[:2] for entry in results])
    assert [entry[2:] for entry in results] == [(True, True)] * 2


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_c09_a_layer_that_one_rank_uses_at_even_steps_is_averaged_with_zeros(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        shared, extra = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
        model = torch.nn.ModuleList([shared, extra])
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model)
        torch.nn.init.zeros_(extra.weight)
        seen = []
        for step in range(4):
            out = shared(torch.ones(1, 2))
            if rank() == 1 and step % 2 == 0:
                out = out + extra(torch.ones(1, 2))
            out.sum().backward()
            seen.append(None if extra.weight.grad is None else extra.weight.grad.tolist())
            optimizer.step()
            optimizer.zero_grad()
        return seen, extra.weight.tolist()

    assert ranks.run(body) == [([[[0.5, 0.5]], None, [[0.5, 0.5]], None], [[-1.0, -1.0]])] * 2


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_a_layer_used_only_in_an_earlier_pass_keeps_that_gradient(ranks):
    def body():
        import torch

        import hvdkit.torch as hk

        early, late = torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(2, 1, bias=False)
        model = torch.nn.ModuleList([early, late])
        hk.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model, accumulate=2)
        (early(torch.ones(1, 2)) + late(torch.ones(1, 2))).sum().backward()
        late(torch.ones(1, 2)).sum().backward()
        return early.weight.grad.tolist(), late.weight.grad.tolist()

    assert ranks.run(body) == [([[0.5, 0.5]], [[1.0, 1.0]])] * 2


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_a_rank_without_any_backward_takes_part_in_the_step(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        model = torch.nn.Linear(2, 1, bias=False)
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model)
        torch.nn.init.zeros_(model.weight)
        if rank() == 0:
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return model.weight.tolist()

    assert ranks.run(body) == [[[-0.5, -0.5]]] * 2


@pytest.mark.parametrize("idle", [False, True], ids=["both", "one_touches_no_row"])
@pytest.mark.parametrize("kind", ["SGD", "SparseAdam", "Adagrad"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d17_sparse_embeddings_equal_one_process(ranks, kind, idle):
    def body():
        import torch
        from torch_cases import digest, distance, flat, rank

        import hvdkit.torch as hk

        def build(seed):
            torch.manual_seed(seed)
            model = torch.nn.Embedding(20, 3, sparse=True, dtype=torch.float64)
            return model, getattr(torch.optim, kind)(model.parameters(), lr=0.05)

        def loss(model, rows):
            return (model(rows) ** 2).sum(-1).mean()

        (model, optimizer), (reference, plain) = build(rank()), build(0)
        start = flat(reference)
        hk.distribute(optimizer, model)
        hk.broadcast(model, optimizer)
        random = torch.Generator().manual_seed(3)
        for step in range(20):
            rows = [torch.randint(0, 20, (4,), generator=random) for _ in range(2)]
            alone = idle and step % 3 == 0
            if not (alone and rank() == 1):
                loss(model, rows[rank()]).backward()
            sparse = model.weight.grad is None or model.weight.grad.is_sparse
            (loss(reference, rows[0]) / 2 + (0 if alone else loss(reference, rows[1]) / 2)).backward()
            for each in (optimizer, plain):
                each.step()
                each.zero_grad()
        assert sparse
        return distance(model, reference, start), digest(model)

    same_and_close(ranks.run(body))


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_a_sparse_gradient_without_its_model_is_refused_with_the_remedy(ranks):
    def body():
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        model = torch.nn.Embedding(5, 2, sparse=True)
        hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1))
        return complaint(model(torch.tensor([1])).sum().backward)

    for text in ranks.run(body):
        assert "pass the model to distribute(optimizer, model)" in text
    ranks.close()


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_channels_last_models_equal_one_process_and_keep_their_strides(ranks):
    def body():
        import torch
        from torch_cases import digest, distance, flat, rank

        import hvdkit.torch as hk

        def build(seed):
            torch.manual_seed(seed)
            layers = torch.nn.Conv2d(3, 5, 3), torch.nn.Tanh(), torch.nn.Conv2d(5, 2, 3)
            model = torch.nn.Sequential(*layers).double().to(memory_format=torch.channels_last)
            return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

        (model, optimizer), (reference, plain) = build(rank()), build(0)
        start = flat(reference)
        hk.distribute(optimizer, model)
        hk.broadcast(model, optimizer)
        torch.manual_seed(5)
        for _ in range(20):
            x = torch.randn(4, 3, 8, 8, dtype=torch.float64).to(memory_format=torch.channels_last)
            model(x[2 * rank() : 2 * rank() + 2]).square().mean().backward()
            reference(x).square().mean().backward()
            strides = model[0].weight.grad.is_contiguous(memory_format=torch.channels_last)
            for each in (optimizer, plain):
                each.step()
                each.zero_grad()
        assert strides
        return distance(model, reference, start), digest(model)

    same_and_close(ranks.run(body))
