"""``Recipe(average=None)``: weights agree, and each rank keeps the metrics of its own samples."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit
from hvdkit.errors import RecipeError

EVERYWHERE = [entry for framework in ("torch", "tf", "keras") for entry in on(framework, ("mpi", "horovod"))]


def trained(framework, average):
    """Train on other samples on each rank; return the last epoch's losses, an evaluation's and a weight."""
    import numpy as np

    if framework != "torch":
        import keras_runs

        keras_runs.fresh()

    def net():
        if framework == "torch":
            import torch

            return torch.nn.Linear(4, 3)
        import keras

        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    data = hvdkit.Data(train=(x, np.arange(32) % 3), validation=(x[:8], np.arange(8) % 3))
    recipe = hvdkit.Recipe(model=net, data=data, optimizer=hvdkit.SGD(0.1), batch_size=4, average=average)
    trainer = hvdkit.apply(recipe, framework)
    record = trainer.fit().epochs[-1]
    weights = np.concatenate([value.ravel() for value in trainer.weights().values()])
    return record["loss"], record["val_loss"], trainer.evaluate()["loss"], weights.tobytes()


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_each_rank_has_its_own_metrics_and_all_have_the_same_weights(ranks):
    off = ranks.run(trained, ranks.combination.framework, None)
    averaged = ranks.run(trained, ranks.combination.framework, hvdkit.Average())
    assert averaged[0] == averaged[1]
    assert off[0][3] == off[1][3]
    for place in range(3):
        assert off[0][place] != off[1][place]
        assert sum(rank[place] for rank in off) / 2 == pytest.approx(averaged[0][place], rel=1e-5)


def test_ranks_that_do_not_average_cannot_stop_at_a_metric():
    with pytest.raises(RecipeError, match=r"Recipe.stop_at .* None where average is None"):
        hvdkit.Recipe(
            model="mnist_cnn",
            data=hvdkit.datasets.mnist,
            optimizer=hvdkit.SGD(0.1),
            stop_at={"accuracy": 0.9},
            average=None,
        )
