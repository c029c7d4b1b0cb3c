"""Steps that a loop of one's own forgets are found by what they lead to: weights that differ between ranks."""

from __future__ import annotations

import pytest
from ranks import Combination, launch_fresh, on, unavailable

not_here = unavailable(Combination("tf", "mpi", 2))
TWO = on("tf", engines=("mpi", "horovod"))


@pytest.mark.parametrize("way", ["eager", "graph"])
@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_r35_a_forgotten_step_is_named_after_the_first_update(ranks, way):
    def body(reducer):
        import contextlib
        import io

        import keras
        import keras_runs as runs
        import tensorflow as tf

        import hvdkit.tf as hk
        from hvdkit.errors import HvdkitError
        from hvdkit.training import drift as neutral

        rank, (x, y) = hk.init().rank, runs.samples(64)

        def train(forgotten):
            runs.fresh()
            keras.utils.set_random_seed(rank if forgotten in ("broadcast", "nothing, late broadcast") else 0)
            model, optimizer = runs.small_net(), keras.optimizers.SGD(0.1, momentum=0.5)
            if reducer == "optimizer" and forgotten != "distribute":
                hk.distribute(optimizer)
            if forgotten not in ("broadcast", "nothing, late broadcast"):
                hk.broadcast(model, optimizer)

            def step(inputs, labels, first):
                with tf.GradientTape() as tape:
                    loss = runs.cross_entropy()(labels, model(inputs, training=True))
                if reducer == "tape" and forgotten != "distribute":
                    hk.distribute(tape)
                variables = model.trainable_variables
                gradients = tape.gradient(loss, variables)
                if forgotten == "added by hand":
                    gradients = [gradient + 0.01 * (1 + rank) for gradient in gradients]
                optimizer.apply_gradients(zip(gradients, variables, strict=True))
                if forgotten == "nothing, late broadcast" and first:
                    hk.broadcast(model, optimizer)
                return loss

            run = tf.function(step, autograph=False) if way == "graph" else step
            taken = 0
            own = (x, y) if forgotten == "shard" else (x[rank::2], y[rank::2])
            for number in range(8):
                rows = slice(4 * number, 4 * number + 4)
                run(tf.constant(own[0][rows]), tf.constant(own[1][rows]), number == 0)
                taken += 1
                if forgotten == "changed" and rank == 1:
                    model.trainable_variables[0].assign_add(1e-6 * tf.ones_like(model.trainable_variables[0]))
            return taken

        found = {}
        every, neutral.EVERY = neutral.EVERY, 6
        try:
            for forgotten in (
                "nothing",
                "nothing, late broadcast",
                "broadcast",
                "distribute",
                "changed",
                "shard",
                *(["added by hand"] if reducer == "tape" else []),
            ):
                said = io.StringIO()
                try:
                    with contextlib.redirect_stderr(said):
                        text = f"{train(forgotten)} steps"
                except (HvdkitError, tf.errors.OpError) as error:  # in a graph TensorFlow wraps hvdkit's in its own
                    text = str(error)
                found[forgotten] = text, "all ranks had the same gradients" in said.getvalue()
        finally:
            neutral.EVERY = every
        return found

    for reducer in ("optimizer", "tape"):
        first, second = ranks.run(body, reducer)
        assert {name: text for name, (text, _) in first.items() if text.endswith("steps")} == dict.fromkeys(
            ("nothing", "nothing, late broadcast", "shard"), "8 steps"
        )
        differ = "the weights differ between ranks after 1 updates: "
        for name, advice in {
            "broadcast": "call broadcast(model, optimizer) before the first step",
            "distribute": "call distribute(optimizer), or distribute(tape)",
            "changed": "something changed weights or gradients on some ranks only",
            **({"added by hand": "something changed weights"} if reducer == "tape" else {}),
        }.items():
            for texts in (first, second):
                assert differ in texts[name][0], (name, texts[name])
                assert advice in texts[name][0], (name, texts[name])
        assert [name for name, (_, said) in first.items() if said] == ["shard"]
        assert not any(said for _, said in second.values())


@pytest.mark.parametrize("ranks", on("tf", engines=("mpi",)), indirect=True)
def test_r35_the_guard_can_be_switched_off_and_one_rank_trains_its_own(ranks):
    def body():
        import tensorflow as tf

        import hvdkit.tf as hk

        rank = hk.init(guard=False).rank
        try:
            weight = tf.Variable([1.0 + rank])
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(weight**2)
                weight.assign_sub(hk.distribute(tape).gradient(loss, [weight])[0])
        finally:
            hk.init(guard=True)
        own = tf.Variable([1.0 + rank])
        for _ in range(3 + rank):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(own**2)
            own.assign_sub(tape.gradient(loss, [own])[0])
        return float(weight[0])

    first, second = ranks.run(body)
    assert first != second


@pytest.mark.processes
@pytest.mark.tf
@pytest.mark.mpi
@pytest.mark.skipif(bool(not_here), reason=not_here)
def test_r35_a_script_that_forgets_the_broadcast_ends_with_hvdkits_own_line():
    script = (
        "import tensorflow as tf\n"
        "import hvdkit.tf as hk\n"
        "rank = hk.init('mpi').rank\n"
        "weight = tf.Variable([1.0 + rank])\n"
        "def step():\n"
        "    with tf.GradientTape() as tape:\n"
        "        loss = tf.reduce_sum(weight**2)\n"
        "    tape = hk.DistributedGradientTape(tape)\n"
        "    weight.assign_sub(0.1 * tape.gradient(loss, [weight])[0])\n"
        "step = tf.function(step, autograph=False)\n"
        "for _ in range(3):\n"
        "    step()\n"
    )
    done = launch_fresh(script, "mpi", 2)
    assert done.code != 0
    said = "hvdkit: error: the weights differ between ranks after 1 updates"
    lines = [line for line in done.stderr.splitlines() if said in line]
    assert lines, done.stderr
    assert all("call broadcast(model, optimizer) before the first step" in line for line in lines)
    assert "UnknownError" not in done.stderr


@pytest.mark.parametrize("ranks", on("tf", engines=("mpi",)), indirect=True)
def test_r35_weights_that_were_moved_by_hand_are_not_saved(ranks, tmp_path):
    def body(folder):
        import keras_runs as runs
        import tensorflow as tf
        from complaints import complaint

        import hvdkit.tf as hk

        hk.init()
        model = runs.small_net()
        hk.broadcast(model)
        for x, y in hk.shard(runs.samples(16), 4):
            with tf.GradientTape() as tape:
                loss = runs.cross_entropy()(y, model(x))
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                variable.assign_sub(0.1 * gradient)
        return [
            complaint(hk.save, f"{folder}/file.npz", model),
            complaint(hk.save, f"{folder}/file.npz", model.trainable_variables),
            complaint(hk.evaluate, model, runs.samples(16), "accuracy"),
        ]

    first, second = ranks.run(body, str(tmp_path))
    assert first == second
    for text in first:
        assert text.startswith("ModelError: the weights differ between ranks when they are used: ")
