"""Cases that make other jobs hang, in every framework: they end on all ranks, or are refused on all ranks."""

from __future__ import annotations

import math

import pytest
from cells import pairs
from ranks import on, unavailable

import hvdkit

PAIRS = pairs()


def threes():
    """Return three processes of each framework on the first engine that is here; Keras's own are slow."""
    found = []
    for framework, engine in (("torch", "torch"), ("torch", "horovod"), ("tf", "mpi"), ("keras", "mpi")):
        (entry,) = on(framework, (engine,), (3,))
        marks = [] if framework == "torch" and not unavailable(entry.values[0]) else [pytest.mark.slow]
        found.append(pytest.param(entry.values[0], marks=[*entry.marks, *marks], id=entry.id))
    return found


@pytest.mark.parametrize("uneven", ["exact", "pad", "drop"])
@pytest.mark.parametrize("ranks", [*PAIRS, *threes()], indirect=True)
def test_c01_ten_samples_end_after_the_same_steps_on_every_rank(ranks, uneven):
    def body(framework):
        import case_parts as parts

        recipe = hvdkit.Recipe(
            model=lambda: parts.net(framework),
            data=hvdkit.Data(train=parts.samples(10)),
            optimizer=hvdkit.SGD(0.1),
            batch_size=2,
            epochs=2,
            shard=hvdkit.Shard(uneven=uneven),
        )
        trainer = hvdkit.apply(recipe, framework)
        trainer.fit()
        return trainer.global_step, trainer.summary(), parts.state(framework, trainer.model, trainer.optimizer)

    first, *others = ranks.run(body, ranks.combination.framework)
    group = 2 * ranks.size
    steps = 10 // group if uneven == "drop" else math.ceil(10 / group)
    assert first[0] == 2 * steps
    assert all(other == first for other in others)
    dropped = 10 - steps * group
    assert ("samples dropped" in first[1]) == (uneven == "drop")
    assert uneven != "drop" or f"{dropped} of 10 samples dropped in every epoch" in first[1]


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_c02_validation_data_on_one_rank_are_refused_on_all(ranks):
    def body(framework):
        import case_parts as parts

        from hvdkit.job.world import current

        validation = None if current().rank else parts.samples(8)
        recipe = hvdkit.Recipe(
            model=lambda: parts.net(framework),
            data=lambda: hvdkit.Data(train=parts.samples(16), validation=validation),
            optimizer=hvdkit.SGD(0.1),
            batch_size=4,
        )
        metrics = {"loss": 1.0} if current().rank else {"loss": 1.0, "val_loss": 2.0}
        return parts.complaint(hvdkit.apply, recipe, framework), parts.complaint(
            parts.verbs(framework).average, metrics
        )

    for data, average in ranks.run(body, ranks.combination.framework):
        assert data == (
            "DataError: validation data: 8 samples on rank 0 but none on rank 1; give every rank all the data, hvdkit "
            "shards them itself"
        )
        assert average == (
            "RecipeError: average: metric 'val_loss' is not there on every rank; pass the same names everywhere"
        )


# a metric that stops to improve after epoch 2 on rank 0 and after epoch 4 on rank 1; the mean does so after epoch 4
LOCAL = ([5.0, 4.0, 4.0, 4.0, 4.0, 4.0], [5.0, 4.0, 3.0, 2.0, 2.0, 2.0])


@pytest.mark.parametrize("ranks", pairs(("torch", "tf")), indirect=True)
def test_c03_a_loop_that_decides_by_the_average_stops_everywhere_at_once(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        world, model = hk.init(), parts.net(framework)
        optimizer = hk.distribute(parts.optimizer_for(framework, model, "SGD", 0.1), model)
        averages = []
        for local in LOCAL[world.rank]:
            for x, y in hk.shard(parts.samples(16), 4):
                parts.update(framework, model, optimizer, x, y)
            averages.append(hk.average(local))
            if averages[-1] >= min(averages[:-1], default=float("inf")):
                break
        return averages

    assert ranks.run(body, ranks.combination.framework) == [[5.0, 4.0, 3.5, 3.0, 3.0]] * 2


@pytest.mark.parametrize("ranks", pairs(("keras",)), indirect=True)
def test_c03_early_stopping_sees_the_average_and_one_rank_alone_may_not_have_it(ranks):
    def body(only_root):
        import case_parts as parts
        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.keras as hk

        world, model = hk.init(), parts.net("keras")
        level = tf.Variable(0.0)

        class Levels(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch, logs=None):
                level.assign(LOCAL[world.rank][epoch])

        metric = keras.metrics.MeanMetricWrapper(lambda y, p: 0.0 * p[:, 0] + level, name="level")
        optimizer = hk.distribute(parts.optimizer_for("keras", model, "SGD", 0.1), model)
        model.compile(optimizer=optimizer, loss=runs.cross_entropy(), metrics=[metric])
        stop = keras.callbacks.EarlyStopping("level", mode="min", patience=1)
        callbacks = [Levels(), hk.callbacks.MetricAverageCallback(), *([] if only_root and world.rank else [stop])]
        batches = hk.shard(parts.samples(16), 4)
        text = parts.complaint(model.fit, batches, epochs=6, callbacks=callbacks, shuffle=False, verbose=0)
        return text or model.history.history["level"]

    assert ranks.run(body, False) == [[5.0, 4.0, 3.5, 3.0, 3.0]] * 2
    first, second = ranks.run(body, True)
    assert first == second
    assert first.startswith("RecipeError: ")
    assert "EarlyStopping" in first


@pytest.mark.parametrize("ranks", pairs(("torch",)), indirect=True)
def test_c09_an_embedding_that_one_rank_looks_into_at_even_steps(ranks):
    def body(sparse):
        import torch

        import hvdkit.torch as hk

        rank = hk.init().rank
        table = torch.nn.Embedding(4, 2, sparse=sparse)
        torch.nn.init.zeros_(table.weight)
        always = torch.nn.Linear(1, 1, bias=False)
        model = torch.nn.ModuleList([always, table])
        optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr=1.0), model)
        for step in range(4):
            out = always(torch.ones(1, 1)).sum()
            if rank == 1 and step % 2 == 0:
                out = out + table(torch.tensor([step])).sum()
            out.backward()
            optimizer.step()
            optimizer.zero_grad()
        return table.weight.detach()

    expected = [[-0.5, -0.5], [0.0, 0.0], [-0.5, -0.5], [0.0, 0.0]]
    for sparse in (False, True):
        for found in ranks.run(body, sparse):
            assert found.tolist() == expected
