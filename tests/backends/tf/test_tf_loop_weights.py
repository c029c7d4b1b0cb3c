"""A loop of one's own that knows nothing of short batches trains as one process does on the union of the batches."""

from __future__ import annotations

import pytest
from ranks import on


@pytest.mark.parametrize("way", ["eager", "graph", "traced before"])
@pytest.mark.parametrize("ranks", on("tf", engines=("mpi", "horovod"), sizes=(3,)), indirect=True)
def test_r42_a_loop_weighs_its_short_batches(ranks, way):
    def body():
        import keras
        import keras_runs as runs
        import numpy as np
        import tensorflow as tf

        import hvdkit.tf as hk

        size, batch = hk.init().size, 6
        signature = [tf.TensorSpec([None, 6], tf.float64), tf.TensorSpec([None], tf.int64)]

        def run(reducer, passes, sparse):
            """Return how far apart the weights are, in units of what training changed."""
            count = 2 * batch * size * passes + size + 1  # what is left is no multiple of the processes
            x, y = runs.samples(count, "float64")

            def build():
                runs.fresh()
                keras.backend.set_floatx("float64")
                if not sparse:
                    return runs.small_net("float64")
                rows = tf.Variable(np.linspace(-1, 1, 90).reshape(30, 3))

                def model(inputs):
                    return tf.reduce_sum(tf.gather(rows, tf.cast(tf.abs(inputs) * 5, tf.int64)), 1)

                model.trainable_variables = [rows]
                return model

            def stepper(model, optimizer, distributed):
                loss_of = runs.cross_entropy()

                def step(inputs, labels):
                    with tf.GradientTape() as tape:
                        loss = loss_of(labels, model(inputs))
                    if distributed and reducer == "tape":
                        hk.distribute(tape)
                    variables = model.trainable_variables
                    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

                return tf.function(step, autograph=False, input_signature=signature) if way != "eager" else step

            model, alone = build(), build()
            before = runs.values(model.trainable_variables)
            optimizer, plain = keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)
            if reducer == "optimizer":
                hk.distribute(optimizer, accumulate=passes)
            step = stepper(model, optimizer, True)
            if way == "traced before":
                step.get_concrete_function()
            for inputs, labels in hk.shard((x, y), batch, shuffle=False, accumulate=passes):
                step(inputs, labels)
            whole, step = batch * size * passes, stepper(alone, plain, False)
            for start in range(0, count, whole):
                step(tf.constant(x[start : start + whole]), tf.constant(y[start : start + whole]))
            after, due = (runs.values(each.trainable_variables) for each in (model, alone))
            return runs.distance(after, due, before)

        try:
            cases = [("tape", 1, False), ("optimizer", 1, False), ("tape", 1, True), ("optimizer", 1, True)]
            if hasattr(keras, "ops") and way != "traced before":
                cases.append(("optimizer", 2, False))
            return [run(*case) for case in cases]
        finally:
            keras.backend.set_floatx("float32")

    for distances in ranks.run(body):
        assert max(distances) < 1e-9, distances


@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("ranks", on("tf", engines=("mpi",)), indirect=True)
def test_r42_a_loop_whose_short_batch_cannot_be_told_is_refused(ranks, way):
    def body():
        import keras_runs as runs
        import tensorflow as tf
        from complaints import complaint

        import hvdkit.tf as hk

        hk.init()
        weight = tf.Variable(1.0)

        def step(inputs):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(weight * inputs)
            weight.assign_sub(hk.distribute(tape).gradient(loss, [weight])[0])

        run = tf.function(step, autograph=False, reduce_retracing=True) if way == "graph" else step
        data = runs.samples(27)

        def train(batches):
            for inputs, _ in batches:
                run(inputs)

        listed = complaint(lambda: train(list(hk.shard(data, 4))))
        return listed, complaint(lambda: train(hk.shard(data, 4))), complaint(lambda: train(list(hk.shard(data, 4))))

    for first, fine, second in ranks.run(body):
        assert first.startswith("RecipeError: shard's batches are read ahead of the backward passes")
        assert fine == ""
        # a graph that was traced before says so when the next loop begins
        assert second == ("" if way == "graph" else first)
