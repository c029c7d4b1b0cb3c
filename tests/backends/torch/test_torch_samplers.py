"""A DataLoader keeps what its user has set: sampler, generator, workers, time limit, what is dropped."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi"))
ONE_AND_TWO = [*on("torch", engines=("serial",), sizes=(1,)), *ENGINES]


@pytest.mark.parametrize(
    "kind", ["weighted", "replacement", "subset", "part", "generator", "own class", "epochs", "sequential", "shuffled"]
)
@pytest.mark.parametrize("ranks", ONE_AND_TWO, indirect=True)
def test_r31_rank_0_draws_from_any_sampler_and_all_ranks_share_it_out(ranks, kind):
    def body():
        import torch
        from torch.utils.data import (
            DataLoader,
            RandomSampler,
            Sampler,
            SubsetRandomSampler,
            TensorDataset,
            WeightedRandomSampler,
        )
        from torch_cases import rank

        import hvdkit.torch as hk

        class Descending(Sampler):
            def __len__(self):
                return 12

            def __iter__(self):
                return iter(range(20, 8, -1))

        class ByEpoch(Descending):
            def set_epoch(self, epoch):
                self.first = epoch

            def __iter__(self):
                return iter(range(self.first, self.first + 12))

        data = TensorDataset(torch.arange(30), torch.arange(30))
        torch.manual_seed(3 + rank())
        sampler = {
            "weighted": lambda: WeightedRandomSampler([1.0] * 10 + [0.0] * 20, 40),
            "replacement": lambda: RandomSampler(data, replacement=True, num_samples=20),
            "subset": lambda: SubsetRandomSampler(range(5, 17)),
            "part": lambda: RandomSampler(data, num_samples=11),
            "generator": lambda: RandomSampler(data, generator=torch.Generator().manual_seed(5)),
            "own class": Descending,
            "epochs": ByEpoch,
        }.get(kind, lambda: None)()
        loader = DataLoader(data, batch_size=4, sampler=sampler, shuffle=kind == "shuffled" or None)
        batches = hk.shard(loader, 4)
        return [[(batch.inputs.tolist(), batch.count) for batch in batches] for _ in range(2)]

    results = ranks.run(body)
    epochs = []
    for epoch in range(2):
        # update k takes G samples, and rank r every size-th of them
        taken = []
        for parts in zip(*(result[epoch] for result in results), strict=True):
            counted = [inputs[:count] for inputs, count in parts]
            taken += [part[place] for place in range(4) for part in counted if place < len(part)]
        epochs.append(taken)
    lengths = {"weighted": 40, "replacement": 20, "subset": 12, "part": 11, "own class": 12, "epochs": 12}
    assert [len(taken) for taken in epochs] == [lengths.get(kind, 30)] * 2
    for taken in epochs:
        if kind == "weighted":
            assert max(taken) < 10
        elif kind == "replacement":
            assert len(set(taken)) < 20
        elif kind == "subset":
            assert sorted(taken) == list(range(5, 17))
        elif kind in ("part", "generator", "shuffled"):
            assert len(set(taken)) == len(taken)
    if kind in ("own class", "sequential"):
        assert epochs == [list(range(20, 8, -1)) if kind == "own class" else list(range(30))] * 2
    elif kind == "epochs":
        assert epochs == [list(range(12)), list(range(1, 13))]
    else:
        assert epochs[0] != epochs[1]
    if kind == "generator":
        assert sorted(epochs[0]) == list(range(30))


@pytest.mark.parametrize("ranks", ONE_AND_TWO, indirect=True)
def test_r31_the_rest_of_a_loader_is_kept(ranks):
    def body():
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import hvdkit.torch as hk

        data = TensorDataset(torch.arange(30), torch.arange(30))
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(
            data, 4, drop_last=True, num_workers=1, persistent_workers=True, timeout=77, generator=generator,
            multiprocessing_context="forkserver",
        )  # fmt: skip
        batches = hk.shard(loader, 4)
        own = batches.source._loader
        kept = (
            own.persistent_workers,
            own.timeout,
            own.multiprocessing_context.get_start_method(),
            own.generator is generator,
        )
        return kept, [batch.count for batch in batches], batches.dropped

    for kept, counts, dropped in ranks.run(body):
        assert kept == (True, 77, "forkserver", True)
        assert counts == [4] * (30 // (4 * ranks.size))
        assert dropped == 30 % (4 * ranks.size)


@pytest.mark.parametrize("kind", ["batch sampler", "distributed sampler", "no length", "says more than it gives"])
@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r31_what_cannot_be_shared_out_is_refused_on_all_ranks(ranks, kind):
    def body():
        import torch
        from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, TensorDataset
        from torch_cases import complaint

        import hvdkit.torch as hk

        class Halves(BatchSampler):
            pass

        class Endless:
            def __iter__(self):
                return iter(range(3))

        class Wrong(Endless):
            def __len__(self):
                return 5

        data = TensorDataset(torch.arange(8), torch.arange(8))
        if kind == "batch sampler":
            loader = DataLoader(data, batch_sampler=Halves(SequentialSampler(data), 4, False))
        else:
            sampler = {
                "distributed sampler": lambda: DistributedSampler(data, num_replicas=2, rank=0),
                "no length": Endless,
                "says more than it gives": Wrong,
            }[kind]()
            loader = DataLoader(data, batch_size=4, sampler=sampler)
        return complaint(lambda: list(hk.shard(loader, 4)))

    texts = ranks.run(body)
    assert texts[0] == texts[1]
    expected = {
        "batch sampler": "batch_sampler (Halves)",
        "distributed sampler": "DistributedSampler",
        "no length": "(Endless) has no __len__",
        "says more than it gives": "Wrong says that it has 5 samples but gives 3",
    }
    assert expected[kind] in texts[0]


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r31_a_loader_brings_its_own_batch_size(ranks):
    def body():
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from torch_cases import complaint

        import hvdkit.torch as hk

        loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
        lengths = [
            [len(batch[0]) for batch in hk.shard(loader)],
            [len(batch[0]) for batch in hk.shard(loader, train=False)],
        ]
        return lengths, complaint(hk.shard, torch.arange(8)), complaint(hk.shard, loader, 4)

    for lengths, missing, other in ranks.run(body):
        assert lengths == [[2, 2], [2, 2]]
        assert "shard needs batch_size, the samples per process and batch" in missing
        assert "the DataLoader has batch_size 2 but 4 is asked for" in other
