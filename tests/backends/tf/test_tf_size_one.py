"""One process with the eight verbs gives, bit for bit, what the plain script gives."""

from __future__ import annotations

import pytest
from ranks import on


@pytest.mark.parametrize("ranks", on("tf", engines=("serial",), sizes=(1,)), indirect=True)
def test_a_loop_on_one_process_equals_the_plain_script(ranks):
    def body():
        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.tf as hk

        x, y = runs.samples(30)

        def train(distributed):
            runs.fresh()
            keras.utils.set_random_seed(4)
            model = runs.small_net()
            rate = 0.05
            if distributed:
                hk.init()
                hk.pin()
                batches = hk.shard((x, y), 8, shuffle=False)
                rate = hk.scale_lr(rate)
            else:
                batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
            optimizer = keras.optimizers.SGD(rate, momentum=0.9)
            if distributed:
                optimizer = hk.distribute(optimizer, model)
                hk.broadcast(model, optimizer)

            @tf.function(reduce_retracing=True)
            def step(images, labels):
                with tf.GradientTape() as tape:
                    loss = runs.cross_entropy()(labels, model(images, training=True))
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                return loss

            losses = []
            for _ in range(4):
                for images, labels in batches:
                    loss = step(images, labels)
                    losses.append(hk.average(loss) if distributed else float(loss))
            return losses, runs.state(model, optimizer)

        return train(True), train(False)

    ((with_hvdkit, plain),) = ranks.run(body)
    assert with_hvdkit == plain


@pytest.mark.parametrize("ranks", on("keras", engines=("serial",), sizes=(1,)), indirect=True)
def test_fit_on_one_process_equals_the_plain_script(ranks):
    def body():
        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.keras as hk

        train, held_out = runs.samples(30), runs.samples(9, seed=2)

        def fit(distributed):
            runs.fresh()
            keras.utils.set_random_seed(4)
            model, rate, callbacks = runs.small_net(), 0.02, []
            if distributed:
                hk.init()
                hk.pin()
                batches = hk.shard(train, 8, shuffle=False)
                rate = hk.scale_lr(rate)
            else:
                batches = tf.data.Dataset.from_tensor_slices(train).batch(8)
            optimizer = keras.optimizers.Adam(rate)
            if distributed:
                optimizer = hk.distribute(optimizer, model)
                callbacks = [
                    hk.callbacks.BroadcastGlobalVariablesCallback(0),
                    hk.callbacks.MetricAverageCallback(),
                    hk.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=2),
                ]
            model.compile(optimizer=optimizer, loss=runs.cross_entropy(), metrics=["accuracy"])
            history = model.fit(
                batches, epochs=3, validation_data=held_out, callbacks=callbacks, shuffle=False, verbose=0
            ).history
            return {name: history[name] for name in sorted(history)}, runs.state(model, model.optimizer)

        return fit(True), fit(False)

    ((with_hvdkit, plain),) = ranks.run(body)
    assert with_hvdkit == plain
