"""A gradient that only some ranks have counts as zero on the others; None on all ranks stays None."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on

TWO = on("tf", engines=("mpi", "horovod"))
MPI = on("tf", engines=("mpi",))


def uneven():
    """Return what tapes and optimizers make of gradients that ranks have in part, eager and in a tf.function."""
    import keras
    import tensorflow as tf

    import hvdkit.tf as hk

    rank = hk.init().rank
    shared, left, right, unused = (tf.Variable([value] * (n + 1)) for n, value in enumerate([1.0, 2.0, 3.0, 4.0]))
    table = tf.Variable(tf.ones([4, 2]))
    variables = [left, shared, right, unused, table]

    def gradients(x, distribute=True):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared * x)
            if rank == 0:
                loss += tf.reduce_sum(left * x[0]) + tf.reduce_sum(tf.gather(table, [1, 1, 3]))
            else:
                loss += tf.reduce_sum(right * x[0])
        return (hk.DistributedGradientTape(tape) if distribute else tape).gradient(loss, variables)

    def plain(found):
        return [None if gradient is None else tf.convert_to_tensor(gradient).numpy().tolist() for gradient in found]

    shapes = []

    @tf.function
    def traced(x):
        shapes.append(x.shape)
        found = gradients(x)
        return [tf.convert_to_tensor(gradient) for gradient in found if gradient is not None]

    eager = plain(gradients(tf.constant([2.0])))
    in_graph = [traced(tf.constant([2.0]))]
    # rank 1 traces again alone, and then rank 0
    in_graph += [traced(tf.constant([2.0] * (1 + (rank == turn)))) for turn in (1, 0)]
    optimizer = hk.distribute(keras.optimizers.SGD(1.0, momentum=0.5))
    optimizer.build(variables)
    unused_before = unused.numpy().tolist()

    @tf.function
    def step(x):
        optimizer.apply_gradients(zip(gradients(x, distribute=False), variables, strict=True))

    for _ in range(2):
        step(tf.constant([2.0]))
    after = [variable.numpy().tolist() for variable in variables]
    assert unused.numpy().tolist() == unused_before
    return eager, [[part.numpy().tolist() for part in found] for found in in_graph], after, len(shapes)


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r07_a_gradient_that_one_rank_lacks_counts_as_zero(ranks):
    rows = [[0, 0], [1, 1], [0, 0], [0.5, 0.5]]
    for eager, (first, second, third), after, traces in ranks.run(uneven):
        assert eager == [[1.0, 1.0], [2.0], [1.0] * 3, None, rows]
        assert first == [part for part in eager if part is not None]
        assert traces == 2
        assert second[0] == third[0] == first[0]
        # momentum 0.5: the second update is 1.5 times the first
        expected = [2.0 - 2.5 * 1.0, 1.0 - 2.5 * 2.0, 3.0 - 2.5 * 1.0]
        assert [value[0] for value in after[:3]] == pytest.approx(expected)
        np.testing.assert_allclose(after[4], 1 - 2.5 * np.array(rows), rtol=1e-6)


def surprising():
    """Return how mistakes are refused."""
    import tensorflow as tf

    import hvdkit.tf as hk
    from hvdkit.errors import ModelError

    rank = hk.init().rank
    first, second = tf.Variable([1.0]), tf.Variable([1.0, 2.0])
    late = []

    def gradient(variables, loss):
        with tf.GradientTape() as tape:
            value = loss()
        return hk.DistributedGradientTape(tape).gradient(value, variables)

    def traced_again():
        @tf.function
        def step(x):
            return gradient(
                [first, second], lambda: tf.reduce_sum(first * x) + (tf.reduce_sum(second) if late else 0.0)
            )[0]

        step(tf.constant([1.0]))
        late.append(True)
        step(tf.constant([1.0, 2.0]))

    def other_order():
        variables = [first, second] if rank == 0 else [second, first]
        gradient(variables, lambda: tf.reduce_sum(first) + tf.reduce_sum(second))

    def fewer():
        gradient([first, second][: 2 - rank], lambda: tf.reduce_sum(first))

    found = []
    for call in (traced_again, other_order, fewer):
        try:
            call()
        except ModelError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("ranks", MPI, indirect=True)
def test_r07_gradients_of_other_variables_and_late_ones_are_refused(ranks):
    for again, order, fewer in ranks.run(surprising):
        assert "has a gradient in a tf.function that is traced again, but had none on any rank" in again
        assert "rank 0 has gradients of 2 variables, rank 1 of 2, which differ in shape or order" in order
        assert "rank 0 has gradients of 2 variables, rank 1 of 1, which differ in shape or order" in fewer
