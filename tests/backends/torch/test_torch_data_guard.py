"""Data that are not the same on all ranks are found when they are sharded."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi"))


@pytest.mark.parametrize("kind", ["arrays", "data set", "data set in workers"])
@pytest.mark.parametrize("fault", ["none", "permuted", "split apart", "own half", "other labels"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r30_data_that_differ_between_ranks_are_refused_by_name(ranks, kind, fault):
    def body():
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, TensorDataset, random_split
        from torch_cases import complaint, rank

        import hvdkit.torch as hk

        x, y = np.arange(80.0).reshape(40, 2), np.arange(40) % 3
        if fault == "permuted":
            order = np.random.default_rng(rank()).permutation(40)
            x, y = x[order], y[order]
        if fault == "own half":
            x, y = x[20 * rank() : 20 * rank() + 20], y[20 * rank() : 20 * rank() + 20]
        if fault == "other labels":
            y = y + rank()
        data = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
        if fault == "split apart":
            data = random_split(data, [30, 10], torch.Generator().manual_seed(rank()))[0]
            x, y = (np.stack(part) for part in zip(*data, strict=False))
        if kind == "arrays":
            return complaint(lambda: hk.shard((x, y), 4))
        workers = 2 if kind == "data set in workers" else 0
        return complaint(lambda: hk.shard(DataLoader(data, batch_size=4, num_workers=workers), 4))

    texts = ranks.run(body)
    assert texts[0] == texts[1]
    assert (texts[0] == "") == (fault == "none")
    assert fault == "none" or ("data: " in texts[0] and "rank 1" in texts[0])


@pytest.mark.parametrize("draw", ["torch", "numpy", "python", "fresh"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r30_random_augmentation_is_no_difference_and_no_number_is_drawn(ranks, workers, draw):
    def body():
        import random

        import numpy as np
        import torch
        from torch_cases import complaint, rank

        import hvdkit.torch as hk

        class Augmented(torch.utils.data.Dataset):
            def __len__(self):
                return 20

            def __getitem__(self, index):
                draws = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}
                noise = draws.get(draw, np.random.default_rng().random)()
                return np.full(3, index + noise), index

        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(7 + rank())
        before = torch.rand(()), np.random.rand(), random.random()
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(7 + rank())
        text = complaint(lambda: hk.shard(Augmented(), 4, workers=workers))
        return text, before == (torch.rand(()), np.random.rand(), random.random())

    assert ranks.run(body) == [("", True)] * 2


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r30_a_file_that_a_data_set_opens_at_its_first_sample_is_opened_in_the_workers(ranks, tmp_path):
    (tmp_path / "samples").write_bytes(bytes(range(200)))

    def body():
        import os

        import torch

        import hvdkit.torch as hk

        class Opened(torch.utils.data.Dataset):
            def __init__(self):
                self.file = None

            def __len__(self):
                return 200

            def __getitem__(self, index):
                self.file = self.file or open(tmp_path / "samples", "rb")  # noqa: SIM115
                self.file.seek(index)
                return self.file.read(1)[0], os.getpid()

        data = Opened()
        batches = hk.shard(data, 10, workers=2, shuffle=False)
        found = [
            (int(value), int(process))
            for values, processes in batches
            for value, process in zip(values, processes, strict=True)
        ]
        return data.file is None, [value for value, _ in found], os.getpid() in {process for _, process in found}

    results = ranks.run(body)
    assert all(closed and not own for closed, _, own in results)
    assert sorted(value for _, values, _ in results for value in values) == list(range(200))


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r30_the_guard_can_be_switched_off(ranks):
    def body():
        import numpy as np
        from torch_cases import complaint, rank

        import hvdkit.torch as hk
        from hvdkit.job.world import current

        current().guard = False
        try:
            return complaint(lambda: hk.shard((np.full((8, 2), rank()), np.zeros(8)), 4))
        finally:
            current().guard = True

    assert ranks.run(body) == ["", ""]


@pytest.mark.parametrize("way", ["init", "recipe"])
@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r30_r35_init_and_a_recipe_switch_both_guards(ranks, way, guard):
    def body():
        import numpy as np
        import torch
        from torch_cases import complaint, rank

        import hvdkit
        import hvdkit.torch as hk

        def own_data():
            data = np.full((8, 2), rank(), np.float32), np.zeros(8, np.int64)
            if way == "init":
                hk.init(guard=guard)
                hk.shard(data, 4)
                return
            model = {"model": lambda: torch.nn.Linear(2, 3), "optimizer": hvdkit.SGD(0.1)}
            hvdkit.apply(hvdkit.Recipe(data=hvdkit.Data(data), guard=guard, **model), "torch")

        def own_weights():  # as own_data has set it
            model = torch.nn.Linear(2, 3)
            optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
            hk.broadcast(model, optimizer)
            with torch.no_grad():
                model.weight[0, 0] = rank()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

        try:
            return complaint(own_data), complaint(own_weights)
        finally:
            hk.init(guard=True)

    for data, weights in ranks.run(body):
        assert ("data: sample" in data) == guard
        assert ("the weights differ" in weights) == guard
