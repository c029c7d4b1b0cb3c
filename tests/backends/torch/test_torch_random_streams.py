"""Which random numbers ranks draw."""

from __future__ import annotations

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi"))


@pytest.mark.parametrize("seeded", ["alike", "apart by the user"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r34_after_the_broadcast_ranks_draw_numbers_of_their_own(ranks, seeded):
    def body():
        import random

        import numpy as np
        import torch
        from torch_cases import mlp, rank

        import hvdkit.torch as hk

        seed = 5 + (rank() if seeded == "apart by the user" else 0)
        for each in (torch.manual_seed, np.random.seed, random.seed):
            each(seed)
        alone = random.random(), np.random.rand()
        for each in (np.random.seed, random.seed):
            each(seed)
        hk.broadcast(mlp())
        first = random.random(), np.random.rand()
        hk.broadcast(mlp())
        return alone, first, (random.random(), np.random.rand(), float(torch.rand(())))

    (alone, first, second), (other_alone, other_first, other_second) = ranks.run(body)
    assert first == alone
    assert (other_first == other_alone) == (seeded == "apart by the user")
    for one, other in zip((*first, *second), (*other_first, *other_second), strict=True):
        assert one != other


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r34_a_recipes_seed_seeds_python_and_numpy_for_its_data_and_its_model(ranks):
    def body():
        import random

        import numpy as np
        import torch
        from torch_cases import rank, samples

        import hvdkit

        drawn = []

        def data():
            drawn.append((random.random(), np.random.rand()))
            return hvdkit.Data(samples(16, torch.float32))

        def model():
            drawn.append((random.random(), np.random.rand()))
            return torch.nn.Linear(6, 4)

        for each in (np.random.seed, random.seed):
            each(rank())
        recipe = hvdkit.Recipe(model=model, data=data, optimizer=hvdkit.SGD(0.1), batch_size=4, seed=11)
        hvdkit.apply(recipe, "torch")
        return drawn, (random.random(), np.random.rand())

    (drawn, after), (others, other_after) = ranks.run(body)
    assert drawn == others
    assert after[0] != other_after[0]
    assert after[1] != other_after[1]
