"""Passes that are only accumulated, and the order in which buckets leave."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
ONE_AND_TWO = [*on("torch", engines=("serial",), sizes=(1,)), *ENGINES]


@pytest.mark.parametrize("ranks", ONE_AND_TWO, indirect=True)
def test_no_sync_passes_count_in_the_mean_and_only_the_last_one_is_reduced(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model)
        seen = []
        for _ in range(2):
            with hk.no_sync(optimizer):
                for x in (1.0, 2.0):
                    model(torch.tensor([[x + rank()]])).backward()
                    seen.append(model.weight.grad.item())
            model(torch.tensor([[6.0 + rank()]])).backward()
            seen.append(model.weight.grad.item())
            optimizer.step()
            optimizer.zero_grad()
        return seen

    shift = (ranks.size - 1) / 2
    for r, seen in enumerate(ranks.run(body)):
        assert seen == pytest.approx([1.0 + r, 3.0 + 2 * r, 3.0 + shift] * 2)


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_buckets_follow_the_order_in_which_rank_0s_gradients_came(ranks):
    def body():
        import torch
        from torch import nn
        from torch_cases import rank

        import hvdkit.torch as hk
        from hvdkit.torch.distribution import _distributions

        class Backwards(nn.Module):
            """Calls its layers from the last to the first, so that the first one's gradient comes first."""

            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(600, 600, bias=False) for _ in range(4)])

            def forward(self, x):
                parts = self.layers[::-1] if rank() == 0 else self.layers
                for part in parts:
                    x = torch.tanh(part(x))
                return x

        def order():
            (reducer,) = _distributions[optimizer].reducers
            return [[names[id(parameter)] for parameter in bucket.parameters] for bucket in reducer._buckets]

        model = Backwards()
        names = {id(layer.weight): number for number, layer in enumerate(model.layers)}
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        seen, values = [], []
        for _ in range(3):
            model(torch.ones(1, 600)).square().mean().backward()
            seen.append(order())
            values.append([layer.weight.grad.double().sum().item() for layer in model.layers])
            optimizer.zero_grad()
        return seen, values

    (seen, values), (other, _) = ranks.run(body)
    assert seen == other
    assert [[number for bucket in order for number in bucket] for order in seen] == [
        [3, 2, 1, 0],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    ]
    assert len(seen[0]) > 1
    assert values[0] == values[1] == values[2]
