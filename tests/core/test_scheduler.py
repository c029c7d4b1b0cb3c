"""What may be declared about a scheduler, without a framework."""

from __future__ import annotations

import pytest

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.recipe.support import check_served


def recipe(**changes):
    return hvdkit.Recipe(model=print, data=print, optimizer=hvdkit.SGD(0.1), **changes)


@pytest.mark.parametrize(
    ("wrong", "part"),
    [
        (lambda: hvdkit.Scheduler("cosine"), "Scheduler.make"),
        (lambda: hvdkit.Scheduler(print, "batch"), "Scheduler.every"),
        (lambda: hvdkit.Scheduler(print, metric=3), "Scheduler.metric"),
        (lambda: hvdkit.Scheduler(print, "step", "val_loss"), "known after an epoch"),
        (lambda: recipe(scheduler="cosine"), "Recipe.scheduler"),
        (lambda: recipe(scheduler=print, schedule=float), "two would set the rate"),
    ],
)
def test_r16_wrong_declarations_are_refused(wrong, part):
    with pytest.raises(RecipeError, match=part):
        wrong()


@pytest.mark.parametrize("framework", ["tf", "keras"])
def test_r16_keras_is_told_of_schedule_objects(framework):
    with pytest.raises(RecipeError, match="a schedule object is the optimizer's learning rate"):
        check_served(recipe(scheduler=print), framework)
    check_served(recipe(scheduler=print), "torch")
