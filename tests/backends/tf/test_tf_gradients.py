"""Gradients averaged by a tape or by an optimizer, dense and sparse, inside a tf.function and outside."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on

TWO = on("tf", engines=("mpi", "horovod"))
MPI = on("tf", engines=("mpi",))


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_a_distributed_tape_averages_inside_a_tf_function(ranks):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk

        rank, weights, unused = hk.init().rank, tf.Variable([1.0, 2.0]), tf.Variable(3.0)

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weights * x)
            tape = hk.DistributedGradientTape(tape)
            return [tape.gradient(loss, [weights, unused])[0], tape is not None]

        first, second = step(tf.constant([1.0 + rank, 2.0])), step(tf.constant([3.0, 4.0 * rank]))
        with tf.GradientTape(persistent=True) as tape:
            square, cube = weights**2 * float(rank), weights**3
        hk.distribute(tape)
        persistent = [tape.gradient(square, weights), tape.gradient(cube, {"w": weights, "none": unused})]
        return first[0], second[0], persistent

    for first, second, (square, cube) in ranks.run(body):
        assert first.tolist() == [1.5, 2.0]
        assert second.tolist() == [3.0, 2.0]
        assert square.tolist() == [1.0, 2.0]
        assert cube["w"].tolist() == [3.0, 12.0]
        assert cube["none"] is None


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_sparse_gradients_of_a_tape_are_gathered(ranks):
    def body(rows, others):
        import tensorflow as tf

        import hvdkit.tf as hk

        rank = hk.init().rank
        table, second = tf.Variable(tf.ones([5, 2])), tf.Variable(tf.ones([4, 1]))

        @tf.function(reduce_retracing=True)
        def step(indices, other):
            with tf.GradientTape() as tape:
                picked = tf.reduce_sum(tf.gather(table, indices) ** 2) * (rank + 1.0)
                loss = picked + tf.reduce_sum(tf.gather(second, other))
            found = hk.DistributedGradientTape(tape).gradient(loss, [table, second])
            assert all(isinstance(gradient, tf.IndexedSlices) for gradient in found)
            return [tf.convert_to_tensor(gradient) for gradient in found]

        return [step(tf.constant(rows[rank], tf.int32), tf.constant(others[rank], tf.int32)) for _ in range(3)]

    # the mean of the ranks' own; rank 1 touches no row in the second case
    for rows in ([[0, 2], [2, 3]], [[1, 1, 4], []]):
        expected = np.zeros((5, 2))
        for rank in (0, 1):
            np.add.at(expected, rows[rank], 2.0 * (rank + 1) / 2)
        for result in ranks.run(body, rows, [[0], [0, 3]]):
            for table, second in result:
                np.testing.assert_allclose(table, expected, rtol=1e-6)
                np.testing.assert_allclose(second[:, 0], [1, 0, 0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("ranks", TWO, indirect=True)
@pytest.mark.parametrize("kind", ["SGD", "Adagrad", "Adam"])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_embeddings_trained_by_an_optimizer_equal_one_process(ranks, kind, clip):
    def body():
        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.tf as hk

        runs.fresh()
        world = hk.init()
        generator = np.random.default_rng(1)
        words = generator.integers(0, 9, (6, 8, 3))
        words[:, 4:] = np.minimum(words[:, 4:], 4)  # rank 1 never touches the last rows
        labels = generator.integers(0, 2, (6, 8))

        def model():
            inputs = keras.Input((3,))
            picked = keras.layers.Flatten()(keras.layers.Embedding(9, 4)(inputs))
            return keras.Model(inputs, keras.layers.Dense(2)(picked))

        def clipped(gradients):
            dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
            return gradients if clip is None else tf.clip_by_global_norm(dense, clip)[0]

        def train(net, optimizer, mine, change=lambda gradients: gradients):
            @tf.function
            def step(x, y):
                with tf.GradientTape() as tape:
                    loss = runs.cross_entropy()(y, net(x))
                gradients = tape.gradient(loss, net.trainable_variables)
                optimizer.apply_gradients(zip(change(gradients), net.trainable_variables, strict=True))
                return isinstance(gradients[0], tf.IndexedSlices)

            return [bool(step(x[mine], y[mine])) for x, y in zip(words, labels, strict=True)]

        shared = model()
        hk.broadcast(shared)
        before = runs.values(shared.weights)
        alone = runs.start(model(), before)
        optimizer = hk.distribute(getattr(keras.optimizers, kind)(0.05), clip_norm=clip)
        sparse = train(shared, optimizer, slice(4 * world.rank, 4 * world.rank + 4))
        train(alone, getattr(keras.optimizers, kind)(0.05), slice(0, 8), clipped)
        after = runs.values(shared.weights)
        return sparse, runs.distance(after, runs.values(alone.weights), before), [a.tobytes() for a in after]

    (sparse, far, weights), (_, _, other) = ranks.run(body)
    assert all(sparse)
    assert far <= 1e-4
    assert weights == other


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_two_optimizers_in_one_function_meet_the_right_partner(ranks):
    def body():
        import keras
        import tensorflow as tf

        import hvdkit.tf as hk

        rank = hk.init().rank
        pairs = [(tf.Variable([float(n)] * (n + 1)), hk.distribute(keras.optimizers.SGD(1.0))) for n in range(6)]
        for variable, optimizer in pairs:
            optimizer.build([variable])

        @tf.function
        def step():
            for number, (variable, optimizer) in enumerate(pairs):
                optimizer.apply_gradients([(tf.ones_like(variable) * (rank + number), variable)])

        for _ in range(20):
            step()
        return [variable.numpy().tolist() for variable, _ in pairs]

    expected = [[n - 20 * (n + 0.5)] * (n + 1) for n in range(6)]
    assert ranks.run(body) == [expected, expected]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_half_precision_is_summed_or_refused(ranks):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk
        from hvdkit.errors import EngineError

        rank, weights = hk.init().rank, tf.Variable([1.0, 2.0])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * (4e4 * (1 + 0.5 * rank)))
        try:
            return hk.DistributedGradientTape(tape, compression="fp16").gradient(loss, weights)
        except EngineError as error:
            return str(error)

    for result in ranks.run(body):
        if ranks.engine == "mpi":
            assert result == "engine 'mpi' cannot sum half precision; use compression='none'"
        else:
            np.testing.assert_allclose(result, [5e4, 5e4], rtol=1e-3)


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_a_tape_or_an_optimizer_but_not_both_and_each_once(ranks):
    def body():
        import keras
        import tensorflow as tf

        import hvdkit.tf as hk
        from hvdkit.errors import RecipeError

        hk.init()
        weights, optimizer = tf.Variable([1.0]), hk.distribute(keras.optimizers.SGD(0.1))
        with tf.GradientTape(persistent=True) as tape:
            loss = weights**2
        distributed = hk.DistributedGradientTape(tape)
        calls = {
            "tape twice": lambda: hk.distribute(tape),
            "optimizer twice": lambda: hk.distribute(optimizer),
            "accumulating tape": lambda: hk.distribute(tf.GradientTape(), accumulate=2),
            "both": lambda: optimizer.apply_gradients([(distributed.gradient(loss, weights), weights)]),
            "compression": lambda: hk.distribute(tf.GradientTape(), compression="fp8"),
        }
        messages = {"same": distributed is tape}
        for name, call in calls.items():
            try:
                call()
            except RecipeError as error:
                messages[name] = str(error)
        return messages

    for messages in ranks.run(body):
        assert messages == {
            "same": True,
            "tape twice": "this tape is distributed already; call distribute once for each tape",
            "optimizer twice": "this optimizer is distributed already; call distribute once for each optimizer",
            "accumulating tape": "a tape cannot accumulate; distribute the optimizer with accumulate instead",
            "both": "these gradients come from a distributed tape, and the optimizer is distributed too; take one of "
            "them",
            "compression": "Distribute.compression is 'fp8'; it must be one of none, fp16, bf16",
        }
