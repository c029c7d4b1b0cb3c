"""Backward inside backward, and backward that breaks off."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
ONE_AND_TWO = [*on("torch", engines=("serial",), sizes=(1,)), *ENGINES]


@pytest.mark.parametrize("accumulate", [1, 2, "no_sync"])
@pytest.mark.parametrize("everything", [False, True], ids=["some layers", "all layers"])
@pytest.mark.parametrize("ranks", ONE_AND_TWO, indirect=True)
def test_r03_reentrant_checkpointing_is_one_pass(ranks, everything, accumulate):
    def body():
        import torch
        from torch.utils.checkpoint import checkpoint
        from torch_cases import apart, mlp, rank

        import hvdkit.torch as hk

        def forward(model, x):
            x = x.requires_grad_()
            first, second = model[:2], model[2:4]
            x = checkpoint(second, checkpoint(first, x, use_reentrant=True), use_reentrant=True)
            return checkpoint(model[4:], x, use_reentrant=True) if everything else model[4:](x)

        size = hk.init().size
        model, plain = mlp(), mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        other = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        hk.distribute(optimizer, model, accumulate=2 if accumulate == 2 else 1)
        for step in range(4):
            for part in range(1 if accumulate == 1 else 2):
                x = torch.randn(2 * size, 6, generator=torch.Generator().manual_seed(10 * step + part)).double()
                mine = x[2 * rank() : 2 * rank() + 2]
                if accumulate == "no_sync" and part == 0:
                    with hk.no_sync(optimizer):
                        forward(model, mine).square().mean().backward()
                else:
                    forward(model, mine).square().mean().backward()
                (plain(x).square().mean() / (1 if accumulate == 1 else 2)).backward()
            for each in (optimizer, other):
                each.step()
                each.zero_grad()
        return apart(model, plain)

    assert max(ranks.run(body)) < 1e-12


@pytest.mark.parametrize("where", ["first layer", "last layer", "one rank later than the other"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r04_an_error_inside_backward_that_all_ranks_catch_skips_a_batch(ranks, where):
    def body():
        import torch
        from torch import nn
        from torch_cases import apart, rank

        import hvdkit.torch as hk

        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, fails):
                ctx.fails = fails
                return x.clone()

            @staticmethod
            def backward(ctx, gradient):
                if ctx.fails:
                    raise RuntimeError("out of memory")
                return gradient, None

        def net():
            torch.manual_seed(0)
            # a bucket is full at 1 MB, so that there are several
            return nn.ModuleList(
                [nn.Linear(6, 400), nn.Linear(400, 400), nn.Linear(400, 400), nn.Linear(400, 2)]
            ).double()

        def loss(model, x, failing):
            for place, layer in enumerate(model):
                x = Fails.apply(layer(x), place == failing)
            return x.square().mean()

        model, plain = net(), net()
        optimizer, other = (torch.optim.SGD(each.parameters(), lr=0.05, momentum=0.9) for each in (model, plain))
        hk.distribute(optimizer, model)
        failing = {"first layer": 0, "last layer": 3}.get(where, 0 if rank() else 2)
        caught = 0
        for step in range(6):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step)).double()
            try:
                loss(model, x[2 * rank() : 2 * rank() + 2], failing if step in (0, 3) else None).backward()
            except RuntimeError:
                caught += 1
                optimizer.zero_grad()
                continue
            loss(plain, x, None).backward()
            for each in (optimizer, other):
                each.step()
                each.zero_grad()
        return caught, apart(model, plain)

    for caught, distance in ranks.run(body):
        assert caught == 2
        assert distance < 1e-12
