"""Sparse gradients with repeated rows, and complex ones: what travels, and that the mean is that of dense gradients."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on

TWO = on("tf", engines=("mpi", "horovod"))
MPI = on("tf", engines=("mpi",))
HEIGHT, WIDTH = 200, 8


def reduced(rows, complex_numbers):
    """Return the gradient of a table of which ranks touch rows, as it is reduced and as the mean of dense ones."""
    import tensorflow as tf

    import hvdkit.tf as hk

    world = hk.init()
    generator = np.random.default_rng(3)
    factors = generator.normal(size=(2, max(map(len, rows)), WIDTH))
    if complex_numbers:
        factors = factors + 1j * generator.normal(size=factors.shape)
    factors = factors.astype("complex64" if complex_numbers else "float32")
    table = tf.Variable(tf.ones([HEIGHT, WIDTH], factors.dtype))

    def gradient(indices, own):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.math.real(tf.gather(table, indices) * own[: tf.shape(indices)[0]]))
        return hk.DistributedGradientTape(tape).gradient(loss, table)

    def plain(rank):
        with tf.GradientTape() as tape:
            picked = tf.gather(table, tf.constant(rows[rank], tf.int32)) * factors[rank][: len(rows[rank])]
            loss = tf.reduce_sum(tf.math.real(picked))
        return tf.convert_to_tensor(tape.gradient(loss, table)).numpy()

    mine = tf.constant(rows[world.rank], tf.int32), tf.constant(factors[world.rank])
    found = []
    for call in (gradient, tf.function(gradient)):
        sparse = call(*mine)
        indices = sparse.indices.numpy()
        assert len(set(indices.tolist())) == len(indices)
        found.append(tf.convert_to_tensor(sparse).numpy())
    return found, (plain(0) + plain(1)) / 2


MANY = [[n % 150 for n in range(600)], [n % 190 for n in range(380)]]
FEW = [[3, 3, 3, 5, 7, 3], [5, 9]]
NONE = [[3, 3], []]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r14_repeated_rows_have_the_mean_of_dense_gradients(ranks):
    for rows in (MANY, FEW, NONE):
        for found, expected in ranks.run(reduced, rows, False):
            for gradient in found:
                np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r08_sparse_complex_gradients_keep_their_imaginary_part(ranks):
    for rows in (MANY, FEW):
        for found, expected in ranks.run(reduced, rows, True):
            assert np.abs(expected.imag).max() > 0.1
            for gradient in found:
                np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_r14_no_more_travels_than_distinct_rows_or_the_dense_gradient(ranks):
    def body(rows):
        import hvdkit.tf as hk
        from hvdkit.keras_common.gradients.reduction import shared_channel

        hk.init()
        channel, sent = shared_channel(), []
        summed, gathered = channel._sum, channel.engine.allgather
        channel._sum = lambda flat: sent.append(flat.nbytes) or summed(flat)
        channel.engine.allgather = lambda array: sent.append(array.nbytes) or gathered(array)
        try:
            reduced(rows, False)
        finally:
            del channel._sum, channel.engine.allgather
        return sum(sent) / 2  # eager and in a tf.function

    dense = HEIGHT * WIDTH * 4
    for rows, most in ((MANY, dense), (FEW, 4 * (WIDTH * 4 + 8))):
        for sent in ranks.run(body, rows):
            assert sent <= most + 8  # the count, and the number of rows


def dense_complex():
    import keras
    import tensorflow as tf

    import hvdkit.tf as hk

    rank = hk.init().rank
    found = {}
    for kind in ("complex64", "complex128"):
        weights, real = tf.Variable(tf.cast([1 + 2j, 3.0], kind)), tf.Variable([1.0])
        factor = tf.cast([1 + 1j, 2j] if rank == 0 else [3 - 5j, 4.0], kind)

        def gradient(weights=weights, real=real, factor=factor, clip=None):
            with tf.GradientTape() as tape:
                loss = tf.cast(tf.reduce_sum(tf.math.real(weights * factor)), tf.float32) + real[0] * (rank + 1.0)
            return hk.distribute(tape, clip_norm=clip).gradient(loss, [weights, real])

        found[kind] = gradient(), tf.function(gradient)(), gradient(clip=1.0)
        if hasattr(keras, "ops"):
            continue
        hk.broadcast([weights])
    own = tf.Variable(tf.constant([1j * (rank + 1), 2.0], tf.complex64))
    hk.broadcast([own])
    return found, own.numpy(), hk.average({"c": tf.constant([1j * rank, 2.0], tf.complex64), "one": 2j * rank})


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r08_complex_gradients_broadcasts_and_averages_keep_their_imaginary_part(ranks):
    for found, own, averages in ranks.run(dense_complex):
        for gradients in found.values():
            eager, in_graph, clipped = gradients
            # TensorFlow's gradient of Re(w f) is the conjugate of f
            for weights, real in (eager, in_graph):
                assert weights.tolist() == [2 + 2j, 2 - 1j]
                assert real.tolist() == [1.5]
            norm = np.sqrt(8 + 5 + 1.5**2)
            np.testing.assert_allclose(clipped[0], np.array([2 + 2j, 2 - 1j]) / norm, rtol=1e-6)
            np.testing.assert_allclose(clipped[1], [1.5 / norm], rtol=1e-6)
        assert own.tolist() == [1j, 2.0]
        assert averages["c"].tolist() == [0.5j, 2.0]
        assert averages["one"] == 1j
