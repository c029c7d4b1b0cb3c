"""Evaluation on several ranks gives what one process gives on all the data."""

from __future__ import annotations

import numpy as np
import pytest
from installed import needs
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
SIZES = on("torch", engines=("torch",), sizes=(2, 3))


@pytest.mark.parametrize("ranks", SIZES, indirect=True)
def test_r23_evaluate_is_that_of_one_process_and_leaves_modes_and_gradients_alone(ranks):
    def body():
        import torch
        from torch_cases import rank, samples

        import hvdkit.torch as hk

        hk.init()
        x, y = samples(9)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5)).double()
        model[1].eval()
        model[1].running_mean.fill_(float(rank()))

        def errors(outputs, targets):
            return (outputs.argmax(1) != targets).double().mean()

        metrics = ("loss", "accuracy", errors)
        found = hk.evaluate(model, (x, y), metrics, loss=torch.nn.CrossEntropyLoss(), batch_size=2)
        again = hk.evaluate(model, hk.shard((x, y), 4, train=False), metrics, loss="sparse_categorical_crossentropy")
        modes = [module.training for module in model.modules()]
        model.eval()
        outputs, targets = model(torch.from_numpy(x)), torch.from_numpy(y)
        whole = {
            "loss": torch.nn.functional.cross_entropy(outputs, targets).item(),
            "accuracy": (outputs.argmax(1) == targets).double().mean().item(),
            "errors": errors(outputs, targets).item(),
        }
        return found, again, whole, modes, [part.grad for part in model.parameters()]

    results = ranks.run(body)
    for found, again, whole, modes, gradients in results:
        assert found == results[0][0]
        assert list(found) == ["loss", "accuracy", "errors"]
        assert found == pytest.approx(whole, rel=1e-12)
        assert again == pytest.approx(whole, rel=1e-12)
        assert modes == [True, True, False, True]
        assert gradients == [None] * len(gradients)


@pytest.mark.parametrize("ranks", on("torch", engines=("torch", "mpi")), indirect=True)
def test_r23_synchronised_batchnorm_evaluates_alone_and_refuses_to_train_there(ranks):
    def body():
        import torch
        from torch_cases import complaint, samples

        import hvdkit.torch as hk

        hk.init()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4)).double()
        hk.distribute(torch.optim.SGD(model.parameters(), 0.1), model, sync_batchnorm=True)
        # two batches on rank 0, one on rank 1
        found = hk.evaluate(model, samples(5), "accuracy", batch_size=2)
        batches = hk.shard(samples(5), 2, train=False)
        return found, model.training, complaint(lambda: [model(x) for x, _ in batches])

    for found, training, said in ranks.run(body):
        assert 0 <= found["accuracy"] <= 1
        assert training
        assert said.startswith(
            "ModelError: a model with synchronised BatchNorm is in training mode in a loop over shard("
        )


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r23_a_loss_counts_what_its_mean_is_taken_over(ranks):
    def body():
        import torch

        import hvdkit.torch as hk

        hk.init()
        scores = torch.arange(40.0).reshape(10, 4).sin()
        labels = torch.tensor([0, 1, -100, 3, -100, 1, -100, 3, 0, 1])
        loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
        return hk.evaluate(torch.nn.Identity(), (scores.numpy(), labels.numpy()), loss=loss, batch_size=1)["loss"], (
            loss(scores, labels).item()
        )

    for found, whole in ranks.run(body):
        assert found == pytest.approx(whole, rel=1e-6)


@needs("torchmetrics")
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_r20_metrics_of_torchmetrics_are_those_of_one_process_over_uneven_shards(ranks):
    def body():
        import numpy as np
        import torch
        import torchmetrics as tm

        import hvdkit.torch as hk

        hk.init()
        generator = np.random.default_rng(1)
        scores = generator.normal(size=(13, 3)).astype("float32")
        labels = generator.integers(0, 3, 13)

        class Peak(tm.Metric):
            def __init__(self):
                super().__init__()
                self.add_state("peak", torch.tensor(-9.0), dist_reduce_fx="max")
                self.add_state("floor", torch.tensor(9.0), dist_reduce_fx="min")

            def update(self, outputs, targets):
                self.peak, self.floor = max(self.peak, outputs.max()), min(self.floor, outputs.min())

            def compute(self):
                return {"peak": self.peak, "floor": self.floor}

        class Middle(tm.Metric):
            def __init__(self):
                super().__init__()
                self.add_state("mean", torch.tensor(0.0), dist_reduce_fx="mean")
                self.seen = 0

            def update(self, outputs, targets):
                self.mean = (self.mean * self.seen + outputs.sum() / 3) / (self.seen + len(outputs))
                self.seen += len(outputs)

            def compute(self):
                return self.mean

        top2 = tm.classification.MulticlassAccuracy(3, top_k=2, average="micro")
        entries = (
            tm.classification.MulticlassAUROC(3),
            tm.MetricCollection({"f1": tm.classification.MulticlassF1Score(3), "top2": top2}),
            tm.classification.MulticlassRecall(3, average=None),
            tm.classification.MulticlassAccuracy(3) + 1.0,
            Peak(),
            Middle(),
        )
        found = hk.evaluate(torch.nn.Identity(), (scores, labels), entries, batch_size=2)
        twice = hk.evaluate(torch.nn.Identity(), (scores, labels), entries, batch_size=3)
        single = hk.evaluate(torch.nn.Identity(), (scores[:1], labels[:1]), top2)

        whole = {}
        for name, metric in (
            ("MulticlassAUROC", entries[0]),
            ("f1", entries[1]["f1"]),
            ("top2", top2),
            ("MulticlassRecall", entries[2]),
            ("CompositionalMetric", entries[3]),
        ):
            fresh = metric.clone()
            fresh.reset()
            fresh.distributed_available_fn = lambda: False
            for part in fresh.modules():
                part.distributed_available_fn = lambda: False
            fresh.update(torch.from_numpy(scores), torch.from_numpy(labels))
            value = fresh.compute()
            if value.numel() > 1:
                whole |= {f"{name}_{place}": float(part) for place, part in enumerate(value)}
            else:
                whole[name] = float(value)
        whole |= {"peak": float(scores.max()), "floor": float(scores.min()), "Middle": float(scores.mean())}
        return found, twice, whole, single, top2.update_count

    results = ranks.run(body)
    for found, twice, whole, single, updates in results:
        assert found == results[0][0]
        assert found == pytest.approx(whole, rel=1e-5, abs=1e-6)
        assert twice == pytest.approx(whole, rel=1e-5, abs=1e-6)
        assert set(single) == {"MulticlassAccuracy"}
        assert updates == 0  # the user's own metric is left alone


@needs("torchmetrics")
@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r20_a_recipe_takes_metrics_of_torchmetrics(ranks):
    def body():
        import torch
        import torchmetrics as tm
        from torch_cases import samples

        import hvdkit

        data = samples(13, torch.float32)
        recipe = hvdkit.Recipe(
            model=lambda: torch.nn.Linear(6, 4),
            data=hvdkit.Data(data, samples(7, torch.float32)),
            optimizer=hvdkit.SGD(0.1),
            metrics=("accuracy", tm.classification.MulticlassAccuracy(4, average="micro")),
            batch_size=2,
            epochs=2,
        )
        trainer = hvdkit.apply(recipe, "torch")
        history = trainer.fit().epochs
        before = trainer.evaluate()
        step = trainer.step((torch.from_numpy(data[0][:2]), torch.from_numpy(data[1][:2])))
        return history, before, step

    results = ranks.run(body)
    for history, before, step in results:
        for record in history:
            assert record["MulticlassAccuracy"] == pytest.approx(record["accuracy"], rel=1e-6)
            assert record["val_MulticlassAccuracy"] == pytest.approx(record["val_accuracy"], rel=1e-6)
        assert before["MulticlassAccuracy"] == pytest.approx(history[-1]["val_accuracy"], rel=1e-6)
        assert step["MulticlassAccuracy"] == pytest.approx(step["accuracy"], rel=1e-6)
        assert history[0]["MulticlassAccuracy"] == results[0][0][0]["MulticlassAccuracy"]


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r20_what_cannot_be_measured_is_refused_on_every_rank(ranks):
    def body():
        import torch
        from torch_cases import complaint, rank, samples

        import hvdkit.torch as hk

        hk.init()
        data, model = samples(8, torch.float32), torch.nn.Linear(6, 4)

        class Kept:
            def update(self, outputs, targets): ...

            def compute(self): ...

            def __call__(self, outputs, targets): ...

        def spread(outputs, targets):
            return outputs.std()

        said = [
            ((), None),
            (("loss",), None),
            (("f1",), None),
            (Kept(), None),
            ((spread, spread), None),
            ((("accuracy", spread)[rank()],), None),
            (torch.nn.L1Loss(reduction="sum"), None),
            ((), lambda outputs, targets: outputs[:, 0]),
        ]
        found = [
            complaint(lambda entries=entries, loss=loss: hk.evaluate(model, data, entries, loss=loss))
            for entries, loss in said
        ]
        return [*found, complaint(lambda: hk.evaluate(model, hk.shard(data, 2), loss=torch.nn.CrossEntropyLoss()))]

    for said in ranks.run(body):
        expected = (
            "evaluate needs to know what to measure",
            "evaluate needs to know what to measure",
            "metric 'f1' is unknown in torch",
            "metric Kept keeps its own state",
            "two metrics are called 'spread'",
            "metrics are accuracy on rank 0 but spread on rank 1",
            "metric L1Loss has reduction='sum'",
            "'loss' of a batch has shape (4,)",
            "evaluate got the batches of training",
        )
        for text, words in zip(said, expected, strict=True):
            assert text.startswith((f"RecipeError: {words}", f"ModelError: {words}")), text


@needs("torchmetrics")
@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r20_a_torchmetrics_object_that_cannot_be_joined_is_refused(ranks):
    def body():
        import torch
        import torchmetrics as tm
        from torch_cases import complaint, samples

        import hvdkit

        class Stray(tm.Metric):
            def update(self, outputs, targets): ...

            def compute(self): ...

        class Unruled(Stray):
            def __init__(self):
                super().__init__()
                self.add_state("total", torch.tensor(0.0), dist_reduce_fx=None)

        def refused(metric):
            recipe = hvdkit.Recipe(
                model=lambda: torch.nn.Linear(6, 4), data=hvdkit.Data(samples(8, torch.float32)),
                optimizer=hvdkit.SGD(0.1), metrics=(metric,),
            )  # fmt: skip
            return complaint(lambda: hvdkit.apply(recipe, "torch"))

        return refused(Stray()), refused(Unruled()), refused(tm.SumMetric(sync_on_compute=False))

    for stray, unruled, unsynced in ranks.run(body):
        assert stray.startswith("RecipeError: metric 'Stray' has no state that add_state made")
        assert unruled.startswith("RecipeError: metric 'Unruled' keeps 'total' with dist_reduce_fx=None")
        assert unsynced.startswith("RecipeError: metric 'SumMetric' has sync_on_compute=False")


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_r19_accuracy_of_one_output_and_of_one_hot_labels(ranks):
    def body():
        import torch

        import hvdkit.torch as hk

        hk.init()
        score = np.array([-2.0, 0.2, 0.7, 3.0, -0.1], np.float32)[:, None]
        label = np.array([0, 1, 0, 1, 1], np.float32)
        hot = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1]]
        same, sigmoid = torch.nn.Identity(), torch.nn.Sigmoid()
        with_logits = torch.nn.functional.binary_cross_entropy_with_logits
        column = label[:, None]
        return [
            hk.evaluate(same, (score, column), "accuracy", loss=with_logits)["accuracy"],
            hk.evaluate(sigmoid, (score, column), "accuracy", loss=torch.nn.BCELoss())["accuracy"],
            hk.evaluate(same, (hot, hot), "accuracy", loss=torch.nn.CrossEntropyLoss())["accuracy"],
        ]

    for found in ranks.run(body):
        assert found == [0.6, 0.6, 1.0]


@pytest.mark.parametrize("ranks", ENGINES[:1], indirect=True)
def test_r23_a_stream_is_evaluated_once_and_in_order(ranks):
    def body():
        import numpy as np
        import torch
        from torch_cases import complaint, rank

        import hvdkit.torch as hk

        def stream():
            yield from ((np.float32(n), n) for n in range(11))

        def by_rank():
            yield from ((np.float32(n), n) for n in range(rank(), 11, 2))

        batches = hk.shard(stream, 2, train=False)
        seen = [[labels.tolist() for _, labels in batches] for _ in range(2)]
        own = torch.cat([labels for _, labels in batches])
        wrong = [
            complaint(hk.shard, by_rank, 2, train=False),
            complaint(hk.shard, stream, 2, train=False, already_split=True),
        ]
        mean = hk.evaluate(torch.nn.Identity(), batches, metrics=(error,))
        return seen, hk.gather(own), wrong, mean

    def error(outputs, targets):
        return (outputs - targets).abs().mean() + targets.float().mean()

    answers = ranks.run(body)
    for rank, ((first, second), joined, (parted, split), mean) in enumerate(answers):
        assert first == second
        assert [n for batch in first for n in batch] == list(range(rank, 11, 2))
        assert joined.tolist() == list(range(11))
        assert "data: the stream" in parted
        assert "already_split is for training" in split
        assert mean == {"error": pytest.approx(5.0)}
