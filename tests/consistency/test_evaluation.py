"""Evaluation in a loop of one's own, and what it needs, in every framework."""

from __future__ import annotations

import numpy as np
import pytest
from cells import every_kind
from ranks import on

KINDS = every_kind()
THREE = [*on("torch", engines=("torch",), sizes=(3,)), *on("tf", engines=("mpi",), sizes=(3,))]


@pytest.mark.parametrize("ranks", [*KINDS, *THREE], indirect=True)
def test_r23_an_own_loop_sees_each_sample_once_and_gather_restores_the_order(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        world = hk.init()
        found = []
        for count in (1, 2, 9, 12):
            x = np.arange(count, dtype="float32")[:, None]
            batches = hk.shard((x, np.arange(count)), 2, train=False)
            for _ in range(2):
                seen = [np.asarray(targets).tolist() for _, targets in batches]
            values = np.array([entry for batch in seen for entry in batch], np.int64)
            tree = {"double": (2 * values, values[:, None].astype("float32"))} if len(values) else None
            found.append((seen, len(batches), hk.gather(values if len(values) else []).tolist(), hk.gather(tree)))
        return world.rank, found

    results = ranks.run(body, ranks.combination.framework)
    size = ranks.size
    for rank, found in results:
        for count, (seen, length, joined, tree) in zip((1, 2, 9, 12), found, strict=True):
            own = list(range(rank, count, size))
            assert seen == [own[start : start + 2] for start in range(0, len(own), 2)]
            assert length == len(seen)
            assert joined == list(range(count))
            doubled, column = tree["double"]
            assert doubled.tolist() == [2 * place for place in range(count)]
            assert column.tolist() == [[float(place)] for place in range(count)]


@pytest.mark.parametrize("ranks", KINDS, indirect=True)
def test_r23_what_makes_an_evaluation_wrong_is_refused(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank = hk.init().rank
        data = parts.samples(9)
        rows = np.zeros((5 - rank, 2))
        calls = [
            lambda: hk.shard(data, 2, train=False, uneven="drop"),
            lambda: hk.shard(data, 2, train=False, steps_per_epoch=2),
            lambda: hk.shard((data[0][:0], data[1][:0]), 2, train=False),
            lambda: hk.gather(np.zeros(5 + rank)),
            lambda: hk.gather([rows[:3], rows[3:]]),
            lambda: hk.gather(np.zeros((5 - rank, 2 + rank))),
            lambda: hk.gather({"a": rows, **({"b": rows} if rank else {})}),
            lambda: hk.gather(None),
            lambda: hk.gather(1.0),
        ]
        return [parts.complaint(call) for call in calls]

    expected = (
        "RecipeError: shard(train=False) brings every sample once, but has uneven='drop'",
        "RecipeError: shard(train=False) brings every sample once, but has steps_per_epoch=2",
        "DataError: the data are empty",
        "DataError: gather: ranks have [5, 6] predictions, but shard(train=False) deals 11 samples out as [6, 5]",
        "DataError: gather got a list whose entries may be batches or outputs",
        "DataError: gather: predictions is float64 (n, 2) on rank 0 but float64 (n, 3) on rank 1",
        "DataError: gather: predictions['b'] is missing on rank 0 but float64 (n, 2) on rank 1",
        "DataError: gather got no predictions on any rank",
        "DataError: gather needs an array of numbers",
    )
    for said in ranks.run(body, ranks.combination.framework):
        for text, words in zip(said, expected, strict=True):
            assert text.startswith(words), text


@pytest.mark.parametrize("ranks", [kind for kind in KINDS if kind.values[0].framework != "torch"], indirect=True)
def test_r20_metric_objects_of_keras_are_those_of_one_process_over_uneven_shards(ranks):
    def body(framework):
        import case_parts as parts
        import keras
        import keras_runs as runs

        hk = parts.verbs(framework)
        hk.init()
        runs.fresh()
        generator = np.random.default_rng(2)
        score = generator.uniform(0.05, 0.95, (7, 1)).astype("float32")
        label = (generator.uniform(size=(7, 1)) < score).astype("float32")
        inputs = keras.Input((1,))
        model = keras.Model(inputs, keras.layers.Activation("linear")(inputs))

        def distance(targets, outputs):
            return abs(targets - outputs)

        def entries():
            f1 = [keras.metrics.F1Score(threshold=0.5, name="f1")] if hasattr(keras.metrics, "F1Score") else []
            return [keras.metrics.AUC(name="auc"), keras.metrics.Recall(name="recall"), *f1]

        given = entries()
        given[1].update_state([1.0, 1.0], [0.0, 1.0])
        loss = keras.losses.BinaryCrossentropy()
        found = hk.evaluate(model, (score, label), ("loss", "accuracy", distance, *given), loss=loss, batch_size=2)
        # no batch on the last rank
        one = hk.evaluate(model, (score[:1], label[:1]), given, loss=loss)
        whole = {"loss": float(loss(label, score)), "distance": float(abs(label - score).mean())}
        whole["accuracy"] = float(((score > 0.5) == label).mean())
        alone = {"loss": float(loss(label[:1], score[:1]))}
        for rows, expected in ((slice(None), whole), (slice(0, 1), alone)):
            for metric in entries():
                metric.update_state(label[rows], score[rows])
                expected[metric.name] = float(np.asarray(runs.values([metric.result()])[0]).reshape(()))
        return found, whole, one, alone, float(runs.values([given[1].result()])[0])

    results = ranks.run(body, ranks.combination.framework)
    for found, whole, one, alone, kept in results:
        assert found == results[0][0]
        assert found == pytest.approx(whole, rel=1e-5)
        assert one == pytest.approx(alone, rel=1e-5)
        assert kept == 0.5  # the user's own metrics are left alone


@pytest.mark.parametrize("ranks", KINDS, indirect=True)
def test_r19_accuracy_of_one_output_is_that_of_its_threshold(ranks):
    def body(framework):
        import case_parts as parts

        import hvdkit

        x, _ = parts.samples(21)
        y = (x[:, :1] + x[:, 1:2] > 0.2).astype("float32")
        if framework == "torch":
            import torch

            def net():
                model = torch.nn.Linear(parts.FEATURES, 1)
                with torch.no_grad():
                    model.weight.copy_(torch.eye(1, parts.FEATURES))
                    model.bias.fill_(-0.5)
                return model

            loss = torch.nn.BCEWithLogitsLoss()
        else:
            import keras
            import keras_runs as runs

            runs.fresh()

            def net():
                inputs = keras.Input((parts.FEATURES,))
                model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
                model.set_weights([np.eye(parts.FEATURES, 1), np.array([-0.5])])
                return model

            loss = keras.losses.BinaryCrossentropy(from_logits=True)
        recipe = hvdkit.Recipe(
            model=net, data=hvdkit.Data((x, y), (x, y)), loss=loss, optimizer=hvdkit.SGD(1e-9),
            metrics=("accuracy",), batch_size=2,
        )  # fmt: skip
        trainer = hvdkit.apply(recipe, framework)
        (record,) = trainer.fit().epochs
        return record["accuracy"], record["val_accuracy"], trainer.evaluate()["accuracy"], float(
            ((x[:, :1] > 0.5) == y).mean()
        )  # fmt: skip

    for trained, validated, evaluated, expected in ranks.run(body, ranks.combination.framework):
        assert 0.5 < expected < 1.0
        assert [trained, validated, evaluated] == pytest.approx([expected] * 3, rel=1e-6)
