"""Metrics travel once per epoch, however many there are and however many batches."""

from __future__ import annotations

import pytest
from ranks import on

PRIMITIVES = ("_do_allreduce", "_do_broadcast", "_do_allgather", "_do_alltoall")
EVERYWHERE = [entry for framework in ("torch", "tf", "keras") for entry in on(framework, ("mpi", "horovod"))]


def exchanges(framework, metrics, batches):
    """Return how many exchanges of arrays and objects an epoch takes; runs on every rank."""
    import numpy as np

    import hvdkit

    def net():
        if framework == "torch":
            import torch

            return torch.nn.Linear(4, 3)
        import keras

        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def metric(number):
        def first(*of_batch):
            outputs = of_batch[0 if framework == "torch" else 1]
            return outputs[:, 0].mean() if framework == "torch" else outputs[:, 0]

        if framework == "keras":
            import keras

            return keras.metrics.SparseCategoricalAccuracy(name=f"m{number}")
        first.__name__ = f"m{number}"
        return first

    x = np.zeros((2 * 8 * batches, 4), np.float32)
    trainer = hvdkit.apply(
        hvdkit.Recipe(
            model=net,
            data=hvdkit.Data(train=(x, np.zeros(len(x), np.int64))),
            optimizer=hvdkit.SGD(0.1),
            metrics=tuple(metric(number) for number in range(metrics)),
            batch_size=8,
        ),
        framework,
    )
    engine, counts = trainer.world.engine, dict.fromkeys(PRIMITIVES, 0)

    def counted(name, primitive):
        def call(*arguments):
            counts[name] += 1
            return primitive(*arguments)

        return call

    for name in PRIMITIVES:
        setattr(engine, name, counted(name, getattr(engine, name)))
    try:
        record = trainer.fit().epochs[-1]
    finally:
        for name in PRIMITIVES:
            delattr(engine, name)
    return counts, len(record)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_h03_many_metrics_and_batches_take_no_more_exchanges_than_few(ranks):
    framework = ranks.combination.framework
    few = ranks.run(exchanges, framework, 1, 5)
    many = ranks.run(exchanges, framework, 20, 50)
    assert many[0][1] == few[0][1] + 19
    assert few[0][0] == many[0][0]
    assert all(counts == many[0][0] for counts, _ in many)
    assert sum(many[0][0].values()) < 20
