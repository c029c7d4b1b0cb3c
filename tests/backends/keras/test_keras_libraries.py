"""Keras on torch and on JAX: fit on two ranks is fit on one."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

pytestmark = pytest.mark.timeout(240)
TORCH = on("keras", engines=("torch", "mpi", "horovod"), env={"KERAS_BACKEND": "torch"})
JAX = on("keras", engines=("mpi",), env={"KERAS_BACKEND": "jax"})


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
    check(ranks.run(compared, 29, timeout=100))
    if ranks.engine == "torch":
        check(ranks.run(compared, 25, timeout=60))
        check(ranks.run(compared, 41, accumulate=4, timeout=60))


@pytest.mark.parametrize("ranks", JAX, indirect=True)
def test_keras_on_jax_equals_one_process(ranks):
    check(ranks.run(compared, 29, timeout=100))
    check(ranks.run(compared, 25, timeout=60))


@pytest.mark.parametrize("ranks", JAX, indirect=True)
def test_warmup_is_refused_on_jax(ranks):
    def body():
        import keras_runs as runs

        from hvdkit.errors import RecipeError

        recipe = hvdkit.Recipe(
            model=runs.small_net,
            data=hvdkit.Data(train=runs.samples(16)),
            optimizer=hvdkit.SGD(0.1),
            batch_size=4,
            scale_lr=hvdkit.ScaleLR(warmup_epochs=1),
        )
        try:
            hvdkit.apply(recipe, "keras")
        except RecipeError as error:
            return str(error)

    for message in ranks.run(body):
        assert message == (
            "Keras on JAX cannot change the learning rate during fit; leave out warmup_epochs and schedule, or use "
            "KERAS_BACKEND=tensorflow"
        )
