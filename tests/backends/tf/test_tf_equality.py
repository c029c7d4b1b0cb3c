"""A run on two ranks in a loop of hvdkit.tf or in Keras's fit is the run of one process on the global batch."""

from __future__ import annotations

import pytest
from ranks import UNDER_KERAS_2, on, slowly

import hvdkit

BATCH, EPOCHS = 4, 5
BAND = {"float32": 1e-4, "float64": 1e-10}
CASES = {
    "sgd": {"optimizer": hvdkit.SGD(0.2)},
    "momentum": {"optimizer": hvdkit.SGD(0.05, momentum=0.9)},
    "nesterov": {"optimizer": hvdkit.SGD(0.05, momentum=0.9, nesterov=True)},
    "adam": {"optimizer": hvdkit.Adam(0.01)},
    "adamw": {"optimizer": hvdkit.AdamW(0.01, weight_decay=0.1)},
    "adagrad": {"optimizer": hvdkit.Adagrad(0.1)},
    "l2": {"optimizer": hvdkit.Adam(0.01, weight_decay=0.1)},
    "clip": {"optimizer": hvdkit.SGD(0.2, weight_decay=0.05), "clip": 0.3},
    "three and two": {"optimizer": hvdkit.SGD(0.2), "count": 29},
    "one and none": {"optimizer": hvdkit.Adam(0.01), "count": 25},
    "pad": {"optimizer": hvdkit.Adam(0.01), "count": 29, "uneven": "pad"},
    "drop": {"optimizer": hvdkit.Adam(0.01), "count": 29, "uneven": "drop"},
    "frozen": {"optimizer": hvdkit.Adam(0.01), "frozen": True},
    "regularised": {"optimizer": hvdkit.SGD(0.2), "count": 29, "penalty": 0.1},
}
ACCUMULATED = {
    "accumulate 4": {"optimizer": hvdkit.Adam(0.01), "count": 64, "accumulate": 4},
    "tail": {"optimizer": hvdkit.SGD(0.05, momentum=0.9), "count": 41, "accumulate": 4},
    "tail of one": {"optimizer": hvdkit.Adam(0.01), "count": 33, "accumulate": 4},
}
# optimizers that tests/consistency compares with NumPy every time
SLOW = ("sgd", "momentum", "nesterov", "adamw", "adagrad", "l2")
OVER_HOROVOD = ("adam", "clip", "three and two")
BOTH = [*on("tf", engines=("mpi",)), *on("keras", engines=("mpi",))]
HOROVOD = [*on("tf", engines=("horovod",)), *on("keras", engines=("horovod",))]


def compared(framework, dtype, optimizer, count=32, uneven="exact", clip=None, accumulate=1, frozen=False, penalty=0.0):
    """Train on the ranks and, with Keras alone, on one process; runs on every rank."""
    import keras
    import keras_runs as runs
    import numpy as np

    runs.fresh()
    keras.backend.set_floatx(dtype)
    try:
        data, steps = runs.samples(count, dtype), runs.Steps()
        recipe = hvdkit.Recipe(
            model=lambda: runs.small_net(dtype, frozen, penalty=penalty),
            data=hvdkit.Data(train=data),
            optimizer=optimizer,
            batch_size=BATCH,
            epochs=EPOCHS,
            seed=runs.SEED,
            observers=(steps,),
            shard=hvdkit.Shard(uneven=uneven),
            distribute=hvdkit.Distribute(accumulate=accumulate, clip_norm=clip),
        )
        trainer = hvdkit.apply(recipe, framework)
        before = runs.values(trainer.model.weights)
        trainer.fit()
        expected = runs.start(runs.small_net(dtype, frozen, penalty=penalty), before)
        group = BATCH * trainer.world.size * accumulate
        order = runs.blocks(count, group, EPOCHS, uneven, trainer.world.size)
        rate = optimizer.lr * trainer.world.size * accumulate
        decay = 0.0 if isinstance(optimizer, hvdkit.AdamW) else optimizer.weight_decay
        runs.plain(expected, runs.stock(optimizer, rate), data, order, clip, decay)
        after = runs.values(trainer.model.weights)
        return {
            "states": steps.states,
            "distance": runs.distance(after, runs.values(expected.weights), before),
            "unchanged": [bool(np.array_equal(a, b)) for a, b in zip(after, before, strict=True)],
            "dtypes": {str(value.dtype) for value in after},
        }
    finally:
        keras.backend.set_floatx("float32")


def check(results, dtype):
    first = results[0]
    assert first["dtypes"] == {dtype}
    assert first["states"]
    assert all(result["states"] == first["states"] for result in results)
    assert all(result["distance"] <= BAND[dtype] for result in results), [r["distance"] for r in results]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
@pytest.mark.parametrize("ranks", slowly(BOTH) if UNDER_KERAS_2 else BOTH, indirect=True)
def test_two_ranks_equal_one_process(ranks, name):
    results = ranks.run(compared, ranks.combination.framework, "float32", **CASES[name])
    check(results, "float32")
    if name == "frozen":
        assert results[0]["unchanged"] == [True, True, False, False, False, False]


@pytest.mark.parametrize("name", OVER_HOROVOD)
@pytest.mark.parametrize("ranks", HOROVOD, indirect=True)
def test_two_ranks_equal_one_process_over_horovod(ranks, name):
    check(ranks.run(compared, ranks.combination.framework, "float32", **CASES[name]), "float32")


@pytest.mark.parametrize("name", ["adam", "momentum", "three and two"])
@pytest.mark.parametrize("ranks", BOTH, indirect=True)
def test_two_ranks_equal_one_process_in_float64(ranks, name):
    check(ranks.run(compared, ranks.combination.framework, "float64", **CASES[name]), "float64")


@pytest.mark.parametrize("name", ACCUMULATED)
@pytest.mark.parametrize("ranks", BOTH, indirect=True)
def test_d15_accumulated_passes_equal_one_large_batch(ranks, name):
    def body(*args, **case):
        from hvdkit.errors import ModelError

        try:
            return compared(*args, **case)
        except ModelError as error:
            return str(error)

    results = ranks.run(body, ranks.combination.framework, "float32", **ACCUMULATED[name])
    if isinstance(results[0], str):
        assert set(results) == {"Keras 2 optimizers cannot accumulate gradients; use accumulate=1, or Keras 3"}
    else:
        check(results, "float32")


@pytest.mark.parametrize("ranks", on("tf", engines=("mpi",), sizes=(3,)), indirect=True)
def test_three_ranks_equal_one_process(ranks):
    check(ranks.run(compared, "tf", "float32", hvdkit.Adam(0.01), count=40), "float32")
    check(ranks.run(compared, "tf", "float32", hvdkit.SGD(0.05, momentum=0.9), count=37, clip=0.5), "float32")
