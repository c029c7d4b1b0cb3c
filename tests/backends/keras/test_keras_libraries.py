"""Keras on torch and on JAX: fit on two ranks is fit on one."""

from __future__ import annotations

import pytest
from keras_kinds import ON_JAX, ON_TORCH
from ranks import on

import hvdkit

TORCH = [*ON_TORCH, *on("keras", engines=("mpi", "horovod"), env={"KERAS_BACKEND": "torch"})]


def compared(count, accumulate=1):
    """Fit on the ranks by apply, and on one process on global batches; runs on every rank."""
    import keras
    import keras_runs as runs

    runs.fresh()
    data, held_out = runs.samples(count), runs.samples(7, seed=8)
    recipe = hvdkit.Recipe(
        model=runs.small_net,
        data=hvdkit.Data(train=data, validation=held_out),
        optimizer=hvdkit.Adam(0.01),
        metrics=("accuracy",),
        batch_size=4,
        epochs=3,
        seed=runs.SEED,
        distribute=hvdkit.Distribute(accumulate=accumulate),
    )
    trainer = hvdkit.apply(recipe, "keras")
    before = runs.values(trainer.model.weights)
    record = trainer.fit().epochs[-1]
    alone = runs.start(runs.small_net(), before)
    alone.compile(keras.optimizers.Adam(0.02 * accumulate, epsilon=1e-8), runs.cross_entropy(), metrics=["accuracy"])
    for indices in runs.blocks(count, 8 * accumulate, 3):
        alone.train_on_batch(data[0][indices], data[1][indices])
    held = alone.evaluate(*held_out, return_dict=True, verbose=0)
    return {
        "state": runs.state(trainer.model, trainer.optimizer),
        "distance": runs.distance(runs.values(trainer.model.weights), runs.values(alone.weights), before),
        "validation": {name: record[f"val_{name}"] for name in held},
        "expected": held,
        "record": {name: record[name] for name in ("loss", "accuracy")},
    }


def check(results):
    first, second = results
    assert first["state"] == second["state"]
    assert first["record"] == second["record"]
    assert first["distance"] <= 1e-4
    assert first["validation"] == pytest.approx(first["expected"], rel=1e-4)
    assert second["validation"] == first["validation"]


@pytest.mark.parametrize("ranks", TORCH, indirect=True)
def test_keras_on_torch_equals_one_process(ranks):
    check(ranks.run(compared, 29))
    if ranks.engine == "torch":
        check(ranks.run(compared, 25))
        check(ranks.run(compared, 41, accumulate=4))


@pytest.mark.parametrize("ranks", ON_JAX, indirect=True)
def test_keras_on_jax_equals_one_process(ranks):
    check(ranks.run(compared, 29))
    check(ranks.run(compared, 25))


@pytest.mark.parametrize("ranks", [*TORCH[:2], *ON_JAX], indirect=True)
def test_fit_keeps_the_order_of_the_batches_by_itself(ranks):
    """Keras shuffles the batches of a PyDataset, on each rank in its own way."""

    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        runs.fresh()
        rank = hk.init().rank
        keras.utils.set_random_seed(1)
        data, model, alone = runs.samples(41), runs.small_net(), runs.small_net()
        before = runs.values(model.weights)
        runs.start(alone, before)
        model.compile(hk.distribute(keras.optimizers.SGD(0.2), model), runs.cross_entropy())
        keras.utils.set_random_seed(rank)
        model.fit(hk.shard(data, 4, seed=runs.SEED), epochs=3, verbose=0)
        alone.compile(keras.optimizers.SGD(0.2), runs.cross_entropy())
        for indices in runs.blocks(41, 8, 3):
            alone.train_on_batch(data[0][indices], data[1][indices])
        return runs.distance(runs.values(model.weights), runs.values(alone.weights), before)

    assert max(ranks.run(body)) <= 1e-4
