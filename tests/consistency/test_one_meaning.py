"""What the frameworks share means the same in each of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from cells import every_kind, pairs
from ranks import UNDER_KERAS_2

import hvdkit

EVERY_KIND = every_kind()


def recipe_of(framework, **options):
    """Return a recipe of the small net; runs on every rank."""
    import case_parts as parts

    settings = {
        "model": lambda: parts.net(framework),
        "data": hvdkit.Data(train=parts.samples(16)),
        "optimizer": hvdkit.SGD(0.1),
        "batch_size": 4,
        **options,
    }
    return hvdkit.Recipe(**settings)


@pytest.mark.parametrize("ranks", EVERY_KIND, indirect=True)
def test_r13_step_updates_after_as_many_passes_as_fit(ranks):
    def body(framework):
        import case_parts as parts

        recipe, made = recipe_of(framework, distribute=hvdkit.Distribute(accumulate=2)), []
        refused = parts.complaint(lambda: made.append(hvdkit.apply(recipe, framework)))
        if refused:
            return refused
        (trainer,) = made
        x, y = parts.samples(16)
        seen = []
        for start in (None, 0, 4, 8, 12):
            if start is not None:
                trainer.step((x[start : start + 4], y[start : start + 4]))
            seen.append(([value.tolist() for value in parts.weights(framework, trainer.model)], trainer.global_step))
        return seen

    results = ranks.run(body, ranks.combination.framework)
    assert results[0] == results[1]
    if UNDER_KERAS_2 and ranks.combination.framework != "torch":
        assert results[0] == "ModelError: Keras 2 optimizers cannot accumulate gradients; use accumulate=1, or Keras 3"
        return
    weights, steps = zip(*results[0], strict=True)
    assert steps == (0, 0, 1, 1, 2)
    assert weights[0] == weights[1] != weights[2] == weights[3] != weights[4]


@pytest.mark.parametrize("ranks", EVERY_KIND, indirect=True)
def test_r27_a_loss_that_is_nan_ends_every_rank_and_leaves_the_files_alone(ranks, tmp_path):
    def body(framework, folder):
        import case_parts as parts

        x, y = parts.samples(16)
        trainer = hvdkit.apply(
            recipe_of(
                framework,
                data=hvdkit.Data(train=(x, np.eye(3, dtype="float32")[y])),
                loss="mean_squared_error",
                epochs=9,
                schedule=lambda epoch: 1.0 if epoch < 1 else 1e30,
                checkpoint=hvdkit.Checkpoint(folder, keep=1),
            ),
            framework,
        )
        said = parts.complaint(trainer.fit)
        # files are written beside training
        for thread in threading.enumerate():
            if thread.name == "hvdkit-background":
                thread.join()
        return said, trainer.epoch

    results = ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert results[0] == results[1]
    said, epoch = results[0]
    assert said == "ModelError: the training loss is NaN; lower the learning rate or check the data"
    assert 1 <= epoch < 9
    assert [path.stem for path in tmp_path.glob("epoch-*")] == [f"epoch-{epoch:04d}"]


@pytest.mark.parametrize("ranks", EVERY_KIND, indirect=True)
def test_r28_whole_numbers_are_targets_of_a_regression(ranks):
    def body(framework):
        import case_parts as parts

        x, _ = parts.samples(16)
        targets = np.arange(48).reshape(16, 3)
        recipe = recipe_of(framework, data=hvdkit.Data(train=(x, targets)), loss="mean_squared_error")
        return hvdkit.apply(recipe, framework).fit().epochs[-1]["loss"]

    first, second = ranks.run(body, ranks.combination.framework)
    assert first == second > 1.0


@pytest.mark.parametrize("ranks", EVERY_KIND, indirect=True)
def test_r19_accuracy_of_one_hot_labels_is_refused(ranks):
    def body(framework):
        import case_parts as parts

        x, y = parts.samples(16)
        data = hvdkit.Data(train=(x, np.eye(3, dtype="float32")[y]))
        recipe = recipe_of(framework, data=data, loss="mean_squared_error", metrics=("accuracy",))
        return parts.complaint(lambda: hvdkit.apply(recipe, framework).fit())

    for said in ranks.run(body, ranks.combination.framework):
        assert "metric 'accuracy' takes scores of shape (n, classes)" in said


@pytest.mark.parametrize("ranks", EVERY_KIND, indirect=True)
def test_warm_up_has_one_signature(ranks):
    def body(framework):
        import inspect

        import case_parts as parts

        return str(inspect.signature(parts.verbs(framework).warmup)).split(" ->")[0]

    for found in ranks.run(body, ranks.combination.framework):
        assert "*, base: 'float', steps_per_epoch: 'int" in found
        assert "epochs: 'float' = 5.0" in found


@pytest.mark.parametrize("ranks", pairs(("tf", "keras")), indirect=True)
def test_r12_keras_refuses_a_compression_that_it_cannot_send(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        hk.init()
        model = parts.net(framework)
        optimizer = parts.optimizer_for(framework, model, "SGD", 0.1)
        return parts.complaint(lambda: hk.distribute(optimizer, model, compression="bf16"))

    for said in ranks.run(body, ranks.combination.framework):
        assert said.startswith("RecipeError: compression='bf16' is not served by tf and keras: ")
