"""What Keras takes as data beside ``(x, y)``: weights, inputs alone, sets of unknown length, one's own batches."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD, ON_TENSORFLOW

BATCH, SEED = 4, 5


def pieces(batches):
    """Return the batches that fit would take."""
    entries = [batches[n] for n in range(len(batches))] if hasattr(batches, "__getitem__") else list(batches)
    return [to_lists(entry) for entry in entries]


def to_lists(tree):
    import numpy as np

    if isinstance(tree, dict):
        return {name: to_lists(part) for name, part in tree.items()}
    return tuple(map(to_lists, tree)) if isinstance(tree, (tuple, list)) else np.asarray(tree).tolist()


def against_one_process(model, alone, batches, steps, optimizer, epochs=2):
    """Fit on the ranks, and one process on whole global batches; return how far they are apart."""
    import keras
    import keras_runs as runs

    import hvdkit.keras as hk

    start = runs.values(model.weights)
    runs.start(alone, start)
    settings = {} if optimizer is None else {"loss": runs.cross_entropy()}
    hk.distribute(own := keras.optimizers.SGD(0.1), model)
    model.compile(optimizer=own, **settings)
    alone.compile(optimizer=keras.optimizers.SGD(0.1), **settings)
    hk.broadcast(model, own)
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    for step in steps:
        alone.train_on_batch(*step)
    return runs.distance(runs.values(model.weights), runs.values(alone.weights), start)


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_r33_arrays_of_any_form_come_as_fit_takes_them(ranks):
    def body():
        import numpy as np
        from complaints import complaint

        import hvdkit.keras as hk

        hk.init()
        x, y = np.arange(8.0).reshape(8, 1), np.arange(8)
        forms = {
            "array": y,
            "list": [x, x + 1],
            "dict": {"x": x, "y": y},
            "inputs": ((x, {"more": x}), y),
            "weights": (x, y, y / 2),
            "outputs": (x, (y, y + 1)),
        }
        found = {name: pieces(hk.shard(data, 2, shuffle=False)) for name, data in forms.items()}
        odd = pieces(hk.shard((x[:5], y[:5], y[:5] + 1.0), 2, shuffle=False))
        wrong = {
            "four": (x, x, x, y),
            "one": (y,),
            "lengths": (x, y, y[:5]),
            "generator": (n for n in range(3)),
            "function": lambda: iter(range(3)),
            "alone": y[:5],
            "number": 3,
        }
        return found, odd, {name: complaint(hk.shard, data, 2) for name, data in wrong.items()}

    results = ranks.run(body)
    for rank, (found, odd, texts) in enumerate(results):
        first = [rank, rank + 2]
        column = [[float(n)] for n in first]
        more = [[n + 1.0] for n in first]
        assert found["array"][0] == first
        assert found["list"][0] == ((column, more),)
        assert found["dict"][0] == {"x": column, "y": first}
        assert found["inputs"][0] == ((column, {"more": column}), first)
        assert found["weights"][0] == (column, first, [n / 2 for n in first])
        assert found["outputs"][0] == (column, (first, [n + 1 for n in first]))
        # one sample is left: rank 1 repeats it at weight 0
        assert odd[1] == ([[4.0]], [4], [5.0 * (rank == 0)])
        assert texts == results[0][2]
        assert texts["four"].startswith(
            "RecipeError: Keras takes a tuple for (x, y) or (x, y, weights), but this one has 4"
        )
        assert texts["one"].startswith(
            "RecipeError: Keras takes a tuple for (x, y) or (x, y, weights), but this one has 1"
        )
        assert texts["lengths"].startswith("DataError: data[0] has 8 samples but data[2] has 5")
        for name in ("generator", "function"):
            assert texts[name].startswith(
                f"RecipeError: data of class {name} cannot be sharded in Keras; write a class"
            )
        assert texts["alone"].startswith("RecipeError: 5 samples leave a rank without a sample")
        assert texts["number"].startswith("RecipeError: data of class int cannot be sharded")


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_own_batches_come_once_over_all_ranks_and_equal_one_process(ranks):
    def body():
        import keras
        import keras_runs as runs
        import numpy as np
        from complaints import complaint

        import hvdkit.keras as hk
        from hvdkit.recipe.plan import ShardPlan

        runs.fresh()
        rank = hk.init().rank
        base = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence
        x, y = runs.samples(20)

        class Own(base):
            def __init__(self, order=None, **settings):
                super().__init__(**settings)
                self.order = np.arange(20) if order is None else order
                self.ended = 0

            def __len__(self):
                return 5

            def __getitem__(self, place):
                rows = self.order[place * BATCH : (place + 1) * BATCH]
                return x[rows], y[rows]

            def on_epoch_end(self):
                np.random.shuffle(self.order)

        np.random.seed(rank)
        plan = ShardPlan(5, 1, 2, seed=SEED)
        order, blocks = np.arange(5), []
        for step in range(3):
            places = plan.order(0)[step * 2 : step * 2 + 2]
            blocks.append(np.concatenate([np.arange(20)[p * BATCH : (p + 1) * BATCH] for p in order[places]]))
        model, alone = runs.small_net(), runs.small_net()
        steps = [(x[rows], y[rows]) for rows in blocks]
        distance = against_one_process(model, alone, hk.shard(Own(), BATCH, seed=SEED), steps, "loss", epochs=1)

        batches = hk.shard(Own(), BATCH, shuffle=False)
        pieces(batches)
        if hasattr(batches, "on_epoch_end"):
            batches.on_epoch_end()
        second = [inputs for inputs, _, weights in pieces(batches) if any(weights)]
        wrong = {"order": Own(np.random.default_rng(rank).permutation(20)), "size": Own()}
        sizes = {"order": BATCH, "size": 2}
        texts = {name: complaint(hk.shard, data, sizes[name]) for name, data in wrong.items()}
        texts["missing"] = complaint(lambda: hk.shard((x, y)))
        assert len(hk.shard(Own())) == len(hk.shard(Own(), BATCH))
        return distance, second, texts, len(hk.shard(Own(), BATCH, uneven="drop")), to_lists(x)

    results = ranks.run(body)
    rows = [row for _, second, *_ in results for batch in second for row in batch]
    assert sorted(rows) == sorted(results[0][4])
    for distance, _, texts, dropped, _ in results:
        assert distance < 1e-5
        assert dropped == 2
        assert texts["order"].startswith("DataError: data: sample 0 on rank 1 is not that of rank 0")
        assert texts["missing"].startswith("RecipeError: shard needs batch_size, the samples per process and batch")
        assert texts["size"] == (
            "RecipeError: Own gives batches of 4 but 2 is asked for; make them equal (it is the batch of one process)"
        )


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_few_own_batches_come_in_the_first_epochs_order_first(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk
        from hvdkit.recipe.plan import ShardPlan

        runs.fresh()
        hk.init()
        base = keras.utils.PyDataset if hasattr(keras.utils, "PyDataset") else keras.utils.Sequence
        x, y = runs.samples(16)

        class Own(base):
            ended = 0

            def __len__(self):
                return 4

            def __getitem__(self, place):
                rows = slice(place * BATCH, (place + 1) * BATCH)
                return x[rows], y[rows]

            def on_epoch_end(self):
                self.ended += 1

        # two batches for each process: fit looks at as many before its first epoch
        plan, rows = ShardPlan(4, 1, 2, seed=SEED), x.reshape(4, BATCH, -1)
        blocks = [plan.order(epoch)[step * 2 : step * 2 + 2] for epoch in range(2) for step in range(2)]
        steps = [(rows[places].reshape(2 * BATCH, -1), y.reshape(4, BATCH)[places].reshape(-1)) for places in blocks]
        own = Own()
        model, alone = runs.small_net(), runs.small_net()
        distance = against_one_process(model, alone, hk.shard(own, BATCH, seed=SEED), steps, "loss")
        return distance, own.ended, sorted(plan.order(0)[:2]) != sorted(plan.order(1)[:2])

    for distance, ended, differ in ranks.run(body):
        assert distance < 1e-5
        assert ended == 2
        assert differ


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_HOROVOD], indirect=True)
@pytest.mark.parametrize("count", [16, 19, 17])
def test_r32_fit_takes_all_of_a_data_set_of_unknown_length(ranks, count):
    def body():
        import keras_runs as runs
        import numpy as np
        import tensorflow as tf

        import hvdkit.keras as hk

        runs.fresh()
        hk.init()
        x, y = runs.samples(count)
        data = tf.data.Dataset.from_tensor_slices((x, y)).filter(lambda x, y: y >= 0)
        model, alone = runs.small_net(), runs.small_net()
        order = [np.arange(start, min(count, start + 8)) for start in range(0, count, 8)] * 2
        steps = [(x[rows], y[rows]) for rows in order]
        return against_one_process(model, alone, hk.shard(data, BATCH, shuffle=False), steps, "loss")

    assert max(ranks.run(body)) < 1e-5


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_HOROVOD], indirect=True)
@pytest.mark.parametrize("kind", ["arrays", "tf.data", "unknown length"])
@pytest.mark.parametrize("count", [16, 19])
def test_r33_a_train_step_of_inputs_alone_equals_one_process(ranks, kind, count):
    def body():
        import keras
        import keras_runs as runs
        import numpy as np
        import tensorflow as tf

        import hvdkit.keras as hk

        class Autoencoder(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = keras.layers.Dense(runs.FEATURES)

            def call(self, inputs):
                return self.layer(inputs)

            def train_step(self, data):
                data = data[0] if isinstance(data, tuple) else data
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(data) - data) ** 2)
                variables = self.trainable_variables
                self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
                return {"loss": loss}

        runs.fresh()
        hk.init()
        x, _ = runs.samples(count)
        data = x if kind == "arrays" else tf.data.Dataset.from_tensor_slices(x)
        uneven = "exact"
        if kind == "unknown length":
            data, uneven = data.filter(lambda row: True), "pad" if count % 2 else "drop"
        order = [np.arange(start, min(count, start + 8)) for start in range(0, count, 8)] * 2
        if uneven == "pad":
            order = [np.resize(rows, len(rows) + len(rows) % 2) for rows in order]
        model, alone = Autoencoder(), Autoencoder()
        for network in (model, alone):
            network(x[:1])
        batches = hk.shard(data, BATCH, shuffle=False, uneven=uneven)
        return against_one_process(model, alone, batches, [(x[rows],) for rows in order], None)

    assert max(ranks.run(body)) < 1e-5


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_HOROVOD], indirect=True)
def test_r33_a_recipe_takes_inputs_alone_with_a_train_step_of_the_model(ranks):
    def body():
        import keras
        import keras_runs as runs
        import tensorflow as tf
        from complaints import complaint

        import hvdkit

        class Autoencoder(keras.Model):
            def __init__(self):
                super().__init__()
                self.layer = keras.layers.Dense(runs.FEATURES)
                self.error = keras.metrics.Mean(name="loss")

            @property
            def metrics(self):
                return [self.error]

            def call(self, inputs):
                return self.layer(inputs)

            def train_step(self, data):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((self(data) - data) ** 2)
                variables = self.trainable_variables
                self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
                self.error.update_state(loss)
                return {"loss": self.error.result()}

        runs.fresh()
        x, _ = runs.samples(16)

        def fitted(model, train):
            loss = "mean_squared_error"
            recipe = hvdkit.Recipe(
                model=model, data=hvdkit.Data(train), loss=loss, optimizer=hvdkit.SGD(0.1), batch_size=4, epochs=2
            )
            return hvdkit.apply(recipe, "keras").fit().epochs

        data = tf.data.Dataset.from_tensor_slices(x)
        losses = [record["loss"] for train in (x, data) for record in fitted(Autoencoder, train)]
        return losses, complaint(fitted, runs.small_net, x), complaint(fitted, runs.small_net, data)

    for losses, *texts in ranks.run(body):
        assert losses[1] < losses[0]
        assert losses[3] < losses[2]
        for text in texts:
            assert text.startswith("RecipeError: the data have no targets, which Keras's train_step takes the loss of")
