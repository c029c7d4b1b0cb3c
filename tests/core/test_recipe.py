"""Declarations are validated when they are made: the message names the field, the value and what is allowed."""

from __future__ import annotations

import dataclasses

import pytest

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.recipe.stopping import parse_target


def recipe(**changes):
    return hvdkit.Recipe(**{"model": "mnist_cnn", "data": lambda: None, "optimizer": hvdkit.SGD(lr=0.1), **changes})


WRONG = [
    (hvdkit.Init, "engine", "infiniband", "auto, serial, horovod, torch, mpi"),
    (hvdkit.Init, "engine", None, "auto, serial"),
    (hvdkit.Pin, "threads", 0, "whole number >= 1"),
    (hvdkit.Pin, "threads", "all", "whole number >= 1"),
    (hvdkit.Shard, "shuffle", 1, "True or False"),
    (hvdkit.Shard, "uneven", "wrap", "exact, pad, drop"),
    (hvdkit.Shard, "workers", -1, "whole number >= 0"),
    (hvdkit.Shard, "workers", True, "whole number >= 0"),
    (hvdkit.Shard, "prefetch", 0, "whole number >= 1"),
    (hvdkit.Shard, "pin_memory", "yes", "True or False"),
    (hvdkit.ScaleLR, "rule", "cubic", "linear, sqrt, none"),
    (hvdkit.ScaleLR, "warmup_epochs", -0.5, "number >= 0"),
    (hvdkit.ScaleLR, "warmup_epochs", float("nan"), "number >= 0"),
    (hvdkit.ScaleLR, "warmup_epochs", float("inf"), "number >= 0"),
    (hvdkit.ScaleLR, "warmup_epochs", "3", "number >= 0"),
    (hvdkit.Distribute, "compression", "int8", "none, fp16"),
    (hvdkit.Distribute, "accumulate", 0, "whole number >= 1"),
    (hvdkit.Distribute, "accumulate", 2.0, "whole number >= 1"),
    (hvdkit.Distribute, "clip_norm", 0.0, "number > 0 or None"),
    (hvdkit.Distribute, "clip_norm", "1", "number > 0 or None"),
    (hvdkit.Broadcast, "root", -1, "whole number >= 0"),
    (hvdkit.Broadcast, "when", "never", "before_first_step, after_first_step"),
    (hvdkit.Checkpoint, "directory", "", "folder"),
    (hvdkit.Checkpoint, "keep", 0, "whole number >= 1"),
    (hvdkit.Checkpoint, "resume", "auto", "True or False"),
    (hvdkit.SGD, "lr", -0.1, "number >= 0"),
    (hvdkit.SGD, "momentum", 1.0, "[0, 1)"),
    (hvdkit.Adam, "eps", "small", "number >= 0"),
    (hvdkit.Adam, "betas", (0.9,), "pair"),
    (hvdkit.AdamW, "weight_decay", -1, "number >= 0"),
    (hvdkit.Adagrad, "initial_accumulator", -0.1, "number >= 0"),
    (hvdkit.Recipe, "model", None, "callable that builds it"),
    (hvdkit.Recipe, "data", 3, "hvdkit.Data"),
    (hvdkit.Recipe, "optimizer", None, "hvdkit's optimizers"),
    (hvdkit.Recipe, "optimizer", "adam", "hvdkit's optimizers"),
    (hvdkit.Recipe, "loss", "hinge", "sparse_categorical_crossentropy, mean_squared_error"),
    (hvdkit.Recipe, "loss", None, "callable"),
    (hvdkit.Recipe, "metrics", "accuracy", "tuple"),
    (hvdkit.Recipe, "batch_size", 0, "whole number >= 1"),
    (hvdkit.Recipe, "batch_size", "64", "whole number >= 1"),
    (hvdkit.Recipe, "epochs", 0, "whole number >= 1"),
    (hvdkit.Recipe, "seed", -1, "whole number >= 0"),
    (hvdkit.Recipe, "steps_per_epoch", 0, "whole number >= 1 or None"),
    (hvdkit.Recipe, "schedule", 0.1, "function of the epoch"),
    (hvdkit.Recipe, "observers", [], "tuple"),
    (hvdkit.Recipe, "stop_at", 0.9, "dict"),
    (hvdkit.Recipe, "stop_at", {"accuracy": "high"}, "numbers"),
    (hvdkit.Recipe, "stop_at", {"accuracy": 96}, "write 0.96 for 96 %"),
    (hvdkit.Recipe, "init", "mpi", "hvdkit.Init(...) or None"),
    (hvdkit.Recipe, "checkpoint", "runs", "hvdkit.Checkpoint(...) or None"),
    (hvdkit.Init, "report_after", 0, "a number of seconds above 0"),
    (hvdkit.Init, "stuck_after", "long", "a number of seconds above 0"),
    (hvdkit.Checkpoint, "every_steps", 0, "whole number >= 1 or None"),
    (hvdkit.Checkpoint, "every_minutes", 0, "number > 0 or None"),
    (hvdkit.Checkpoint, "best", "wobble", '("falling", NAME)'),
    (hvdkit.Checkpoint, "best", ("down", "loss"), '("falling", NAME)'),
    (hvdkit.Checkpoint, "force", 1, "True or False"),
    (hvdkit.Recipe, "model", {"pytorch": "mnist_cnn"}, "torch, tf, keras"),
    (hvdkit.Recipe, "optimizer", {}, "torch, tf, keras"),
]


@pytest.mark.parametrize(("owner", "field", "value", "allowed"), WRONG)
def test_a_wrong_value_names_field_value_and_what_is_allowed(owner, field, value, allowed):
    needed = {hvdkit.Recipe: recipe, hvdkit.Checkpoint: lambda **own: hvdkit.Checkpoint(**{"directory": "runs", **own})}
    with pytest.raises(RecipeError) as caught:
        needed.get(owner, owner)(**{field: value})
    text = str(caught.value)
    assert f"{owner.__name__}.{field}" in text
    assert allowed in text
    assert str(value) in text or repr(value) in text
    assert "\n" not in text


def test_every_step_has_a_default_and_none_switches_it_off():
    made = recipe()
    steps = ("init", "pin", "shard", "scale_lr", "distribute", "broadcast", "average")
    assert all(getattr(made, step) is not None for step in steps)
    assert made.checkpoint is None
    off = recipe(**dict.fromkeys(steps))
    assert all(getattr(off, step) is None for step in steps)


def test_replace_changes_fields_and_checks_them_anew():
    made = recipe(epochs=3)
    changed = made.replace(batch_size=16, scale_lr=None)
    assert (made.batch_size, changed.batch_size, changed.epochs, changed.scale_lr) == (32, 16, 3, None)
    with pytest.raises(RecipeError, match=r"Recipe\.batch_size is -1"):
        made.replace(batch_size=-1)
    with pytest.raises(RecipeError, match=r"no field 'bath_size'.*batch_size"):
        made.replace(bath_size=16)


def test_a_recipe_cannot_be_changed_in_place():
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe().epochs = 5


def test_pick_takes_the_entry_of_the_framework():
    made = recipe(model={"torch": "mnist_cnn", "tf": len})
    assert made.pick("model", "tf") is len
    assert made.pick("loss", "tf") == "sparse_categorical_crossentropy"
    with pytest.raises(RecipeError, match=r"Recipe\.model has entries for torch, tf but not for 'keras'"):
        made.pick("model", "keras")


def test_nesterov_needs_momentum():
    with pytest.raises(RecipeError, match="give a momentum"):
        hvdkit.SGD(lr=0.1, nesterov=True)


def test_an_unknown_framework_is_refused_before_anything_is_imported():
    with pytest.raises(RecipeError, match="'mxnet' is unknown; use one of torch, tf, keras"):
        hvdkit.apply(recipe(), framework="mxnet")
    with pytest.raises(RecipeError, match=r"needs an hvdkit\.Recipe, it got dict"):
        hvdkit.apply({}, framework="torch")


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("loss", "falling"), ("val_loss", "falling"), ("mae", "falling"), ("mean_squared_error", "falling"),
        ("categorical_crossentropy", "falling"), ("word_error", "falling"), ("accuracy", "rising"), ("acc", "rising"),
        ("val_sparse_categorical_accuracy", "rising"), ("top5_accuracy", "rising"), ("auc", "rising"), ("f1", "rising"),
    ],
)  # fmt: skip
def test_r22_the_direction_of_a_metric_is_told_by_its_name(metric, direction):
    assert parse_target(metric, 0.25) == (direction, 0.25)
    recipe(stop_at={metric: 0.25})


def test_r22_a_direction_that_is_not_known_must_be_given():
    with pytest.raises(RecipeError, match=r"'wer'.*falls or rises.*\(\"falling\", 0\.1\)"):
        recipe(stop_at={"wer": 0.1})
    recipe(stop_at={"wer": ("falling", 0.1)})
    with pytest.raises(RecipeError, match="names to numbers"):
        recipe(stop_at={"wer": ("down", 0.1)})
