"""A loop of one's own that knows nothing of short batches trains as one process does on the union of the batches."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi"), sizes=(2, 3))


@pytest.mark.parametrize(
    "way", ["SGD", "two passes", "sparse", "LBFGS", "accumulate", "sync_batchnorm", "scaled", "stream", "group clipped"]
)
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r42_a_loop_weighs_its_short_batches(ranks, way):
    def body():
        import numpy as np
        import torch
        from torch.nn.functional import cross_entropy
        from torch_cases import distance, flat, mlp, samples

        import hvdkit.torch as hk

        size, passes = hk.init().size, 2 if way == "accumulate" else 1
        count, batch = 2 * 6 * size * passes + size + 1, 6  # what is left is no multiple of the processes

        def build():
            torch.manual_seed(0)
            if way == "sparse":
                return torch.nn.Sequential(torch.nn.EmbeddingBag(50, 4, sparse=True)).double()
            if way == "sync_batchnorm":
                return torch.nn.Sequential(mlp()[0], torch.nn.BatchNorm1d(16).double(), *mlp()[1:])
            return mlp()

        def optimizer_of(model, lr=0.1):
            kind = torch.optim.LBFGS if way == "LBFGS" else torch.optim.SGD
            return kind(model.parameters(), lr=lr, **({"max_iter": 3} if way == "LBFGS" else {"momentum": 0.5}))

        def train(model, optimizer, batches):
            for x, y in batches:

                def closure(x=x, y=y):
                    out = model(x)
                    loss = cross_entropy(out, y) * (4.0 if way == "scaled" else 1.0)
                    loss.backward(retain_graph=way == "two passes")
                    if way == "two passes":
                        (out**2).mean().backward()
                    return loss

                if way == "LBFGS":
                    optimizer.step(lambda: (optimizer.zero_grad(), closure())[1])
                    continue
                closure()
                if getattr(batches, "last", True):
                    if way == "scaled":
                        for parameter in model.parameters():
                            parameter.grad /= 4.0
                    if way == "group clipped":
                        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                    optimizer.step()
                    optimizer.zero_grad()

        x, y = samples(count)
        if way == "sparse":
            x = np.abs(x * 10).astype(np.int64)
        model, alone = build(), build()
        optimizer = optimizer_of(model)
        hk.distribute(optimizer, model, accumulate=passes, sync_batchnorm=way == "sync_batchnorm")
        hk.broadcast(model, optimizer)
        data = (lambda: zip(x, y, strict=True)) if way == "stream" else (x, y)
        train(model, optimizer, hk.shard(data, batch, shuffle=False, accumulate=passes))
        whole = batch * size * passes
        parts = [slice(start, start + whole) for start in range(0, count, whole)]
        before = flat(alone)
        train(alone, optimizer_of(alone), [(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in parts])
        return distance(model, alone, before)

    for far in ranks.run(body):
        assert far < 1e-9


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r42_a_loop_whose_short_batch_cannot_be_told_is_refused(ranks):
    def body():
        import torch
        from torch.nn.functional import cross_entropy
        from torch_cases import complaint, mlp, samples

        import hvdkit.torch as hk

        hk.init()
        model = mlp()
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        data = samples(27)

        def train(batches):
            for x, y in batches:
                optimizer.zero_grad()
                cross_entropy(model(x), y).backward()
                optimizer.step()

        listed = complaint(lambda: train(list(hk.shard(data, 4))))
        optimizer.zero_grad()
        return listed, complaint(lambda: train(list(hk.shard(data, 4, uneven="pad"))))

    for listed, padded in ranks.run(body):
        assert listed.startswith("RecipeError: shard's batches are read ahead of the backward passes")
        assert padded == ""
