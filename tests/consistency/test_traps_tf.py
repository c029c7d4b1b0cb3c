"""Traps of a custom loop in TensorFlow: the stock way falls into each, which is why hvdkit's exists."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on

# the ranks of Keras, which are up already, run hvdkit.tf too
STOCK = on("keras", engines=("horovod",))


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_a_loop_of_ones_own_needs_the_optimizer_alone(ranks):
    """Stock: with a plain tape, apply_gradients of the wrapped optimizer averages nothing, and nothing says so."""

    def body(stock):
        import horovod.tensorflow.keras as hvd
        import keras
        import tensorflow as tf

        import hvdkit.tf as hk
        from hvdkit.job.world import current

        weight, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(0.1)
        optimizer = hvd.DistributedOptimizer(optimizer) if stock else hk.distribute(optimizer)
        optimizer.build([weight])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * (1.0 + current().rank))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return round(float(weight[0]), 5)

    assert ranks.run(body, stock=True) == [0.9, 0.8]
    assert ranks.run(body, stock=False) == [0.85, 0.85]


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_uneven_shards_count_by_their_samples(ranks):
    """Stock: ranks with 3 and 2 samples count the same, in the gradient and in the metric."""

    def body(stock):
        import horovod.tensorflow as hvd
        import tensorflow as tf

        import hvdkit.tf as hk

        shared, alone = tf.Variable(np.ones((3, 1))), tf.Variable(np.ones((3, 1)))
        x = np.random.default_rng(3).normal(size=(5, 3))
        batches, errors = hk.shard((x, x), 3, shuffle=False), []

        def update(weights, part, tape_of):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((part @ weights - 1.0) ** 2)
            (gradient,) = tape_of(tape).gradient(loss, [weights])
            weights.assign_sub(0.1 * gradient)
            return loss

        for _ in range(10):
            for mine, _ in batches:
                loss = update(shared, mine, hvd.DistributedGradientTape if stock else hk.DistributedGradientTape)
                mean = float(hvd.allreduce(loss)) if stock else hk.average(loss, count=batches.count)
            whole = float(update(alone, x, lambda tape: tape))
            errors.append(abs(mean - whole) / whole)
        far = np.linalg.norm(shared - alone) / np.linalg.norm(alone - 1.0)
        return float(far), errors[0]

    for far, error in ranks.run(body, stock=True):
        assert far > 1e-2
        assert error > 1e-2
    for far, error in ranks.run(body, stock=False):
        assert far < 1e-10
        assert error < 1e-12


@pytest.mark.parametrize("ranks", STOCK, indirect=True)
def test_trap_integers_have_a_mean_and_half_precision_does_not_overflow(ranks):
    """Stock: the mean of 7 and 8 is 7, and 4e4 on both ranks becomes infinite in the sum."""

    def body():
        import horovod.tensorflow as hvd
        import tensorflow as tf

        import hvdkit.tf as hk
        from hvdkit.job.world import current

        right, weight, found = tf.constant(7 + current().rank), tf.Variable([1.0]), []
        for tape_of, half in (
            (hvd.DistributedGradientTape, hvd.Compression.fp16),
            (hk.DistributedGradientTape, "fp16"),
        ):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(weight * 4e4)
            found.append(float(tape_of(tape, compression=half).gradient(loss, [weight])[0][0]))
        return int(hvd.allreduce(right)), hk.average(right), found

    for stock_mean, mean, (stock, ours) in ranks.run(body):
        assert (stock_mean, mean) == (7, 7.5)
        assert stock == float("inf")
        assert ours == pytest.approx(4e4, rel=1e-3)
