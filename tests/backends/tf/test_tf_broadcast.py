"""One state on all ranks, before the first step or after it, and what differs between ranks is named."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

TWO = on("tf", engines=("mpi", "horovod"))
MPI = on("tf", engines=("mpi",))


@pytest.mark.parametrize("ranks", TWO, indirect=True)
@pytest.mark.parametrize("flag", ["python", "tensor"])
def test_d07_broadcast_after_the_first_step_inside_a_tf_function(ranks, flag):
    def body():
        import keras
        import keras_runs as runs
        import tensorflow as tf
        import tf_steps

        import hvdkit.tf as hk

        runs.fresh()
        rank = hk.init().rank
        keras.utils.set_random_seed(rank)  # ranks start different
        model, optimizer = runs.small_net(), keras.optimizers.Adam(0.01)
        x, y = runs.samples(40)
        own = [value.tobytes() for value in runs.values(model.weights)]

        step = tf_steps.late_broadcast(model, optimizer, runs.cross_entropy())
        states = []
        for number in range(4):
            first = tf.constant(number == 0) if flag == "tensor" else number == 0
            rows = slice(8 * number + 4 * rank, 8 * number + 4 * rank + 4)
            step(x[rows], y[rows], first)
            states.append(runs.state(model, optimizer))
        return own, states

    (own, states), (other, others) = ranks.run(body)
    assert own != other
    assert states == others
    assert len({tuple(state) for state in states}) == 4


@pytest.mark.parametrize("ranks", MPI, indirect=True)
@pytest.mark.parametrize("when", ["before_first_step", "after_first_step"])
def test_apply_broadcasts_when_the_recipe_says(ranks, when):
    def body():
        import keras
        import keras_runs as runs

        from hvdkit.job.world import current

        runs.fresh()

        def different():
            keras.utils.set_random_seed(current().rank)
            return runs.small_net()

        steps = runs.Steps()
        recipe = hvdkit.Recipe(
            model=different,
            data=hvdkit.Data(train=runs.samples(32)),
            optimizer=hvdkit.Adam(0.01),
            batch_size=4,
            observers=(steps,),
            broadcast=hvdkit.Broadcast(root=1, when=when),
        )
        trainer = hvdkit.apply(recipe, "tf")
        before = [value.tobytes() for value in runs.values(trainer.model.weights)]
        trainer.fit()
        return before, steps.states

    (before, states), (others, other_states) = ranks.run(body)
    assert (before == others) == (when == "before_first_step")
    # the observers see step 1 after its broadcast
    assert states == other_states


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_variables_without_a_model_are_broadcast_too(ranks):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk

        rank = hk.init().rank
        variables, slots = [tf.Variable([1.0 + rank, 2.0]), tf.Variable(rank)], [tf.Variable(5.0 * rank)]
        hk.broadcast(variables, slots, root=1)
        outside = [variable.numpy().tolist() for variable in variables + slots]
        for variable in variables + slots:
            variable.assign(variable + tf.cast(rank, variable.dtype))
        tf.function(lambda: hk.broadcast(variables, slots))()
        return outside, [variable.numpy().tolist() for variable in variables + slots]

    expected = ([[2.0, 2.0], 1, 5.0], [[2.0, 2.0], 1, 5.0])
    assert ranks.run(body) == [expected, expected]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_c08_shapes_and_dtypes_that_differ_are_named(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.tf as hk
        from hvdkit.errors import ModelError
        from hvdkit.job.world import current

        rank, messages = hk.init().rank, []
        data = hvdkit.Data(train=runs.samples(32))

        def wide():
            inputs = keras.Input((runs.FEATURES,))
            return keras.Model(inputs, keras.layers.Dense(3 + current().rank, name="last")(inputs))

        def typed():
            inputs = keras.Input((runs.FEATURES,))
            return keras.Model(inputs, keras.layers.Dense(3, dtype=f"float{32 * (1 + rank)}", name="last")(inputs))

        for model in (wide, typed):
            runs.fresh()
            recipe = hvdkit.Recipe(model=model, data=data, optimizer=hvdkit.SGD(0.1), batch_size=4)
            try:
                hvdkit.apply(recipe, "tf")
            except ModelError as error:
                messages.append(str(error))
        return messages

    first, second = ranks.run(body)
    assert first == second
    for message, parts in zip(first, (("(6, 3)", "(6, 4)"), ("float32", "float64")), strict=True):
        assert message.startswith("the model differs between ranks: ")
        assert "last/kernel" in message
        assert "rank 1" in message
        assert all(part in message for part in parts)


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r37_layers_that_one_rank_built_before_make_no_difference(ranks):
    def body():
        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.tf as hk

        runs.fresh()
        rank = hk.init().rank
        for _ in range(2 if rank == 0 else 0):
            runs.small_net()
        keras.utils.set_random_seed(rank)
        states = []
        for send in (hk.broadcast, tf.function(hk.broadcast)):
            model, optimizer = runs.small_net(), keras.optimizers.Adam(0.1)
            optimizer.build(model.trainable_variables)
            send(model, optimizer)
            states.append(runs.state(model, optimizer))
        return states

    first, second = ranks.run(body)
    assert first == second
