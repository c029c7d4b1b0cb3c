"""Traps of shared state in torch: the stock way falls into each, which is why hvdkit's exists."""

from __future__ import annotations

import pytest
from ranks import on

STOCK = on("torch", engines=("horovod",))
EXACT = 1e-10


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_the_optimizers_state_is_broadcast_without_a_step(ranks):
    """Stock: broadcast_optimizer_state steps a fresh optimizer, so Adam counts one step too many."""

    def body(stock):
        import horovod.torch as hvd
        import torch
        from torch_parts import distance, flat, net, rank, samples, update

        import hvdkit.torch as hk

        model, alone = net(), net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        else:
            hk.distribute(optimizer, model)
            hk.broadcast(model, optimizer)
        plain, start, x = torch.optim.Adam(alone.parameters(), lr=0.02), flat(alone), samples(48)
        for step in range(6):
            batch = x[8 * step : 8 * step + 8]
            update(model, optimizer, batch[rank() :: 2])
            update(alone, plain, batch)
        return [int(state["step"]) for state in optimizer.state.values()], distance(model, alone, start)

    for steps, far in ranks.run(body, stock=True):
        assert steps == [7] * 4
        assert far > 1e-3
    for steps, far in ranks.run(body, stock=False):
        assert steps == [6] * 4
        assert far < EXACT


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_wrapping_keeps_the_optimizers_state_and_defaults(ranks):
    """Stock: the wrapper is a new optimizer, without the momentum that was loaded and with torch's own defaults."""

    def body(stock):
        import horovod.torch as hvd
        import torch
        from torch_parts import net, samples, update

        import hvdkit.torch as hk

        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        update(model, optimizer, samples(8))
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            optimizer = hk.distribute(optimizer, model)
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
        return len(optimizer.state), optimizer.param_groups[1]["lr"], optimizer.param_groups[1]["momentum"]

    assert ranks.run(body, stock=True) == [(0, 1e-3, 0)] * 2
    assert ranks.run(body, stock=False) == [(4, 0.3, 0.9)] * 2


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_the_learning_rate_of_plain_sgd_is_broadcast(ranks):
    """Stock: an optimizer without state is passed over, and with it every option of its groups."""

    def body(stock):
        import horovod.torch as hvd
        import torch
        from torch_parts import net, rank

        import hvdkit.torch as hk

        model, first = net(), rank() == 0
        groups = [
            {"params": model[0].parameters(), "weight_decay": 0.5 if first else 0.0},
            {"params": model[2].parameters(), "lr": 0.03 if first else 0.1},
        ]
        optimizer = torch.optim.SGD(groups, lr=0.01 if first else 0.1)
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        else:
            hk.distribute(optimizer, model)
            hk.broadcast(model, optimizer)
        return [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups]

    saved = [(0.01, 0.5), (0.03, 0.0)]
    assert ranks.run(body, stock=True) == [saved, [(0.1, 0.0), (0.1, 0.0)]]
    assert ranks.run(body, stock=False) == [saved, saved]


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_on_a_resume_with_weight_decay_the_weights_are_sent_last(ranks):
    """Stock: ranks without the checkpoint make a step for their state, which shrinks weights sent before it."""

    def body(stock):
        import horovod.torch as hvd
        import torch
        from torch_parts import flat, net, rank, samples, update

        import hvdkit.torch as hk

        model = net(seed=rank())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            hk.distribute(optimizer, model)
        if rank() == 0:  # the checkpoint of an earlier run
            earlier = net(5)
            file = torch.optim.AdamW(earlier.parameters(), lr=0.01, weight_decay=0.1)
            update(earlier, file, samples(8))
            model.load_state_dict(earlier.state_dict())
            optimizer.load_state_dict(file.state_dict())
        if stock:
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        else:
            hk.broadcast(model, optimizer)
        return flat(model)

    saved, others = ranks.run(body, stock=True)
    assert others == pytest.approx(saved * (1 - 0.01 * 0.1), rel=1e-12)
    saved, others = ranks.run(body, stock=False)
    assert (saved == others).all()


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_batchnorms_statistics_in_a_file_are_those_of_all_ranks(ranks, tmp_path):
    """Stock: running statistics drift apart, and the file that rank 0 writes holds those of its own shard."""

    def body(folder):
        import horovod.torch as hvd
        import torch
        from torch_parts import rank, update

        import hvdkit.torch as hk

        def trained(wrap):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.BatchNorm1d(4, momentum=1.0), torch.nn.Linear(4, 2)).double()
            update(model, wrap(model), torch.full((4, 4), 1.0 + 2 * rank(), dtype=torch.float64))
            return model

        def wrapped(model):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return hvd.DistributedOptimizer(optimizer, model.named_parameters())

        stock = trained(wrapped)
        ours = trained(lambda model: hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model))
        if rank() == 0:
            torch.save(stock.state_dict(), f"{folder}/stock.pt")
        hk.save(f"{folder}/ours.pt", ours)
        if rank():
            return None
        content = torch.load(f"{folder}/ours.pt", weights_only=True)["model"]
        return torch.load(f"{folder}/stock.pt", weights_only=True)["0.running_mean"], content["0.running_mean"]

    (stock, ours), _ = ranks.run(body, str(tmp_path))
    assert stock.tolist() == [1.0] * 4
    assert ours.tolist() == [2.0] * 4
