"""A Keras on torch that wraps models in DistributedDataParallel by itself: hvdkit alone reduces, or refuses it."""

from __future__ import annotations

import pytest
from keras_kinds import ON_TORCH

pytestmark = pytest.mark.parametrize("ranks", ON_TORCH, indirect=True)
SAMPLES, EPOCHS, RATE = 13, 3, 0.2


def prepared():
    """Return data, a model, and its weights, alike on all ranks."""
    import keras
    import keras_runs as runs

    runs.fresh()
    keras.utils.set_random_seed(1)
    model = runs.small_net()
    return runs.samples(SAMPLES), model, runs.values(model.weights)


def compiled(model, optimizer):
    import keras
    import keras_runs as runs

    model.compile(optimizer, runs.cross_entropy(), metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")])
    return model


def test_only_hvdkit_reduces_the_gradients_of_a_model_that_it_is_given(ranks):
    """Batches of 4 and 1 samples tell: Keras's wrapper would count both alike."""

    def body():
        import keras
        import keras_runs as runs
        from coming_keras import wrapping_itself

        import hvdkit.keras as hk

        data, model, before = prepared()
        with wrapping_itself():
            compiled(model, hk.distribute(keras.optimizers.SGD(RATE), model))
            callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
            batches = hk.shard(data, 4, seed=runs.SEED)
            record = model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=callbacks).history
        alone = compiled(runs.start(runs.small_net(), before), keras.optimizers.SGD(RATE))
        rows = []
        for indices in runs.blocks(SAMPLES, 8, EPOCHS):
            alone.reset_metrics()
            rows.append((len(indices), alone.train_on_batch(data[0][indices], data[1][indices], return_dict=True)))
        last = [(count, row["accuracy"]) for count, row in rows[-2:]]
        return {
            "weights": runs.as_bytes(model.weights),
            "distance": runs.distance(runs.values(model.weights), runs.values(alone.weights), before),
            "accuracy": record["accuracy"][-1],
            "expected": sum(count * value for count, value in last) / SAMPLES,
        }

    first, second = ranks.run(body, timeout=120)
    assert first["weights"] == second["weights"]
    assert first["distance"] <= 1e-4
    assert first["accuracy"] == second["accuracy"] == pytest.approx(first["expected"], rel=1e-5)


def test_a_rank_may_evaluate_its_own_number_of_batches(ranks):
    def body():
        import keras
        from coming_keras import wrapping_itself

        import hvdkit.keras as hk

        (x, y), model, _ = prepared()
        with wrapping_itself():
            compiled(model, hk.distribute(keras.optimizers.SGD(RATE), model))
            count = 4 if hk.init().is_root else 3
            return model.evaluate(x[:count], y[:count], batch_size=1, verbose=0)[1] * count

    for correct, count in zip(ranks.run(body, timeout=60), (4, 3), strict=True):
        assert correct == pytest.approx(round(correct), abs=1e-5)
        assert correct <= count


@pytest.mark.parametrize(("given", "attribute"), [(False, "ddp_model"), (True, "another_name")])
def test_a_wrapper_that_keras_puts_around_a_model_is_refused_on_every_rank(ranks, given, attribute):
    def body():
        import keras
        import keras_runs as runs
        from coming_keras import wrapping_itself
        from complaints import complaint

        import hvdkit.keras as hk

        data, model, before = prepared()
        with wrapping_itself(attribute):
            compiled(model, hk.distribute(keras.optimizers.SGD(RATE), model if given else None))
            said = complaint(model.fit, hk.shard(data, 4), verbose=0)
        return said, runs.distance(runs.values(model.weights), before, [0 * value for value in before])

    for said, moved in ranks.run(body, timeout=120):
        assert said.startswith("ModelError: DistributedDataParallel around Keras's 'functional")
        assert "distribute(optimizer, model)" in said
        assert "\n" not in said
        assert moved == 0


def test_a_model_that_keras_has_wrapped_before_is_unwrapped_or_refused(ranks):
    def body():
        import keras
        from coming_keras import wrapping_itself
        from complaints import complaint

        import hvdkit.keras as hk

        data, model, _ = prepared()
        with wrapping_itself():
            compiled(model, keras.optimizers.SGD(RATE)).evaluate(*data, verbose=0)
            wrapped = model.ddp_model is not None
            said = complaint(hk.distribute, keras.optimizers.SGD(RATE))
            return wrapped, said, complaint(hk.distribute, model.optimizer, model), model.ddp_model

    for wrapped, without_model, with_model, wrapper in ranks.run(body, timeout=120):
        assert wrapped
        assert without_model.startswith("ModelError: DistributedDataParallel around Keras's 'functional")
        assert with_model == ""
        assert not wrapper


def test_wrappers_around_other_models_are_free_and_all_are_when_the_optimizer_is_gone(ranks):
    def body():
        import gc

        import keras
        from complaints import complaint
        from torch.nn.parallel import DistributedDataParallel

        import hvdkit.keras as hk

        (_, model, _), (_, other, _) = prepared(), prepared()
        optimizer = hk.distribute(keras.optimizers.SGD(RATE), model)
        during = complaint(DistributedDataParallel, model), complaint(DistributedDataParallel, other)
        del optimizer
        gc.collect()
        return *during, complaint(DistributedDataParallel, model)

    for around_model, around_other, afterwards in ranks.run(body, timeout=120):
        assert around_model.startswith("ModelError: DistributedDataParallel around Keras's")
        assert around_other == ""
        assert afterwards == ""


def test_a_distribution_of_keras_is_refused_beside_hvdkit(ranks):
    def body():
        from unittest import mock

        import keras
        from complaints import complaint

        import hvdkit.keras as hk

        _, model, _ = prepared()
        with mock.patch.object(keras.distribution, "distribution", return_value=object()):
            return complaint(hk.distribute, keras.optimizers.SGD(RATE), model)

    for said in ranks.run(body, timeout=120):
        assert said.startswith("ModelError: keras.distribution is set")
