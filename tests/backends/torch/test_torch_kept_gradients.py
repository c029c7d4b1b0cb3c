"""Gradients that the user keeps, and gradients of gradients."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))


@pytest.mark.parametrize("clear", ["to none", "to zero", "never", "half of them"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r02_gradients_that_are_kept_stay_as_they_were(ranks, clear):
    def body():
        import torch
        from torch_cases import mlp, rank

        import hvdkit.torch as hk

        def gradients(own, distribute):
            model = mlp()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
            if distribute:
                hk.distribute(optimizer, model)
            kept = []
            for step in range(3):
                x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
                model(own(x)).square().mean().backward()
                kept.append([parameter.grad for parameter in model.parameters()])
                if clear in ("to none", "to zero"):
                    optimizer.zero_grad(set_to_none=clear == "to none")
                elif clear == "half of them":
                    for parameter in list(model.parameters())[::2]:
                        parameter.grad = None
            return [torch.cat([each.reshape(-1) for each in part]) for part in kept]

        mine = gradients(lambda x: x[2 * rank() : 2 * rank() + 2], True)
        return mine, gradients(lambda x: x, False)

    for mine, plain in ranks.run(body):
        for one, other in zip(mine, plain, strict=True):
            assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("ranks", [*on("torch", engines=("torch",)), *on("torch", engines=("serial",))], indirect=True)
def test_r02_create_graph_is_refused_where_its_graph_would_be_lost_and_served_where_not(ranks):
    def body():
        import torch
        from torch_cases import complaint, mlp, rank

        import hvdkit.torch as hk

        def penalty(model, x):
            x = x.requires_grad_()
            (slope,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
            return model(x).square().mean() + slope.square().sum()

        size = hk.init().size
        x = torch.ones(2, 6, dtype=torch.float64) * (1 + rank())
        model, plain = mlp(), mlp()
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        penalty(model, x).backward()
        for other in range(size):
            (penalty(plain, torch.ones(2, 6, dtype=torch.float64) * (1 + other)) / size).backward()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        distance = max(float((parameter.grad - other.grad).abs().max()) for parameter, other in pairs)
        optimizer.zero_grad()
        text = complaint(lambda: model(x).square().mean().backward(create_graph=True)) if size > 1 else ""
        return distance, text

    for distance, text in ranks.run(body):
        assert distance < 1e-12
        assert ranks.size == 1 or ("create_graph" in text and "autograd.grad" in text)
