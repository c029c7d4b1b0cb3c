"""Traps of data-parallel training in torch: the stock way falls into each, which is why hvdkit's exists."""

from __future__ import annotations

import pytest
from ranks import on

STOCK = on("torch", engines=("horovod",))
EXACT = 1e-10


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_layers_that_are_thawed_later_are_averaged(ranks):
    """Stock: what is frozen when the optimizer is wrapped is never averaged, and ranks drift apart when it thaws."""

    def body(stock):
        import horovod.torch as hvd
        import torch
        from torch_parts import flat, net, rank, samples, update

        import hvdkit.torch as hk

        model = net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            hk.distribute(optimizer, model)
        x = samples(16)[rank() :: 2]
        update(model, optimizer, x)
        frozen = flat(model[0])
        model[0].requires_grad_(True)
        update(model, optimizer, x)
        return flat(model[0]), bool((flat(model[0]) == frozen).all())

    (first, still), (second, _) = ranks.run(body, stock=True)
    assert not still
    assert (first != second).any()
    (first, still), (second, _) = ranks.run(body, stock=False)
    assert not still
    assert (first == second).all()


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_uneven_shards_count_by_their_samples(ranks):
    """Stock: ranks with 3 and 2 samples count the same, in the gradient and in the metric."""

    def body(stock):
        import horovod.torch as hvd
        import torch
        from torch_parts import distance, flat, net, samples, update

        import hvdkit.torch as hk

        model, alone, x = net(), net(), samples(5)
        optimizer, plain = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, alone))
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            hk.distribute(optimizer, model)
        batches, start, errors = hk.shard((x.numpy(), x.numpy()), 3, shuffle=False), flat(alone), []
        for _ in range(10):
            for mine, _ in batches:
                loss = update(model, optimizer, mine)
                mean = float(hvd.allreduce(torch.tensor(loss))) if stock else hk.average(loss, count=batches.count)
            whole = update(alone, plain, x)
            errors.append(abs(mean - whole) / whole)
        return distance(model, alone, start), errors[0]

    for far, error in ranks.run(body, stock=True):
        assert far > 1e-2
        assert error > 1e-2
    for far, error in ranks.run(body, stock=False):
        assert far < EXACT
        assert error < 1e-12


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_integers_have_a_mean_too(ranks):
    """Stock: the mean of whole numbers is rounded down to one."""

    def body():
        import horovod.torch as hvd
        import torch
        from torch_parts import rank

        import hvdkit.torch as hk

        right = torch.tensor([7, 8][rank()])
        return hvd.allreduce(right).item(), hk.average(right)

    assert ranks.run(body) == [(7, 7.5)] * 2


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_every_epoch_has_an_order_of_its_own(ranks):
    """Stock: without a call of set_epoch the sampler gives every epoch the same order."""

    def body():
        import horovod.torch as hvd
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

        import hvdkit.torch as hk

        y = np.arange(20)
        dataset = TensorDataset(torch.from_numpy(y[:, None]), torch.from_numpy(y))
        sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
        loader, batches = DataLoader(dataset, batch_size=5, sampler=sampler), hk.shard((y[:, None], y), 5)
        return [[[n for _, part in each for n in part.tolist()] for _ in range(3)] for each in (loader, batches)]

    (stock, ours), (_, theirs) = ranks.run(body)
    assert stock[0] == stock[1] == stock[2]
    assert ours[0] != ours[1] != ours[2]
    for mine, others in zip(ours, theirs, strict=True):
        assert sorted(mine + others) == list(range(20))


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_half_precision_does_not_overflow_in_the_sum(ranks):
    """Stock: 4e4 on both ranks, well within half precision, becomes infinite in their sum, and so do the weights."""

    def body(stock):
        import horovod.torch as hvd
        import torch

        import hvdkit.torch as hk

        weight = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, [("weight", weight)], compression=hvd.Compression.fp16)
        else:
            hk.distribute(optimizer, compression="fp16")
        (weight * 4e4).sum().backward()
        optimizer.step()
        return weight.detach()

    for weight in ranks.run(body, stock=True):
        assert weight.tolist() == [float("-inf")] * 3
    for weight in ranks.run(body, stock=False):
        assert weight.tolist() == pytest.approx([-4e4] * 3, rel=1e-3)


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_zero_grad_and_channels_last_work_as_in_torch(ranks):
    """Stock: both raise."""

    def body(stock):
        import horovod.torch as hvd
        import torch

        import hvdkit.torch as hk

        model = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if stock:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        else:
            hk.distribute(optimizer, model)
        found = []
        for call in (
            lambda: optimizer.zero_grad(set_to_none=True),
            lambda: model(torch.ones(1, 2, 4, 4)).sum().backward(),
        ):
            try:
                call()
            except (TypeError, ValueError) as error:
                found.append(str(error))
        return found

    for argument, strides in ranks.run(body, stock=True):
        assert "set_to_none" in argument
        assert "contiguous" in strides
    assert ranks.run(body, stock=False) == [[], []]
