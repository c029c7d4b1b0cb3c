"""Which buffers ranks share, and when."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi"))


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r25_only_batchnorms_statistics_and_named_buffers_are_averaged(ranks, tmp_path):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = torch.nn.BatchNorm1d(2)
                self.register_buffer("queue", torch.full((3,), float(rank())))
                self.register_buffer("moving", torch.full((2,), float(rank())))
                # of another length on each rank
                self.register_buffer("positions", torch.zeros(4 + rank()))

        model = Net()
        model.norm.running_mean.fill_(rank())
        hk.save(str(tmp_path / "x.pt"), model)
        first = model.norm.running_mean.tolist(), model.queue.tolist(), model.moving.tolist(), len(model.positions)
        hk.synchronise_statistics(model, also=["moving"])
        return first, model.moving.tolist()

    for rank, (first, moving) in enumerate(ranks.run(body)):
        assert first == ([0.5, 0.5], [rank] * 3, [rank] * 2, 4 + rank)
        assert moving == [0.5, 0.5]


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r25_a_buffer_that_is_not_there_is_refused(ranks):
    def body():
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        model = torch.nn.BatchNorm1d(2)
        return [complaint(lambda name=name: hk.synchronise_statistics(model, also=[name])) for name in
                ("running_men", "num_batches_tracked")]  # fmt: skip

    for texts in ranks.run(body):
        assert "'running_men'" in texts[0]
        assert "'num_batches_tracked'" in texts[1]


@pytest.mark.parametrize("validation", [False, True])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r24_predictions_agree_between_ranks_after_fit(ranks, validation):
    def body():
        import torch
        from torch_cases import samples

        import hvdkit

        data = samples(24, torch.float32)
        recipe = hvdkit.Recipe(
            model=lambda: torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4)),
            data=hvdkit.Data(data, data if validation else None),
            optimizer=hvdkit.SGD(0.1),
            batch_size=4,
        )
        trainer = hvdkit.apply(recipe, "torch")
        trainer.fit()
        return trainer.predict(data[0])

    first, second = ranks.run(body)
    assert (first == second).all()
