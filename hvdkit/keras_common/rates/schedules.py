"""Learning-rate schedule objects of Keras, scaled through their own config, so that class and file stay Keras's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.keras_common.compat import innermost, is_schedule, keras, schedule_of, to_numpy
from hvdkit.keras_common.rates.scaled import note_scaled
from hvdkit.recipe.plan import LearningRate
from hvdkit.training import verbs

_RATES = {
    "CosineDecay": ("initial_learning_rate", "warmup_target"),
    "CosineDecayRestarts": ("initial_learning_rate",),
    "ExponentialDecay": ("initial_learning_rate",),
    "InverseTimeDecay": ("initial_learning_rate",),
    "PiecewiseConstantDecay": ("values",),
    "PolynomialDecay": ("initial_learning_rate", "end_learning_rate"),
}


def scale_lr(lr: Any, rule: Any = "linear", accumulate: int = 1) -> Any:
    """Step 4: scale the learning rate of one process by global batch / batch size.

    Args:
        lr: The learning rate of one process: a number, or a schedule object of Keras's own.
        rule: ``linear``, ``sqrt``, ``none``, or a callable that takes size * accumulate and returns the factor.
        accumulate: Micro-batches per update.

    Returns:
        A number, or a schedule of the same class.

    Raises:
        RecipeError: The rule is unknown, or the schedule's class is not Keras's own.
    """
    if not is_schedule(lr):
        scaled = verbs.scale_lr(lr, rule, accumulate)
        note_scaled(lr, scaled)
        return scaled
    return scale_schedule(lr, verbs.scale_lr(1.0, rule, accumulate))


def scale_schedule(schedule: Any, factor: float) -> Any:
    """Return a schedule of the same class whose rates are ``factor`` times as large.

    Raises:
        RecipeError: The class is not Keras's own.
    """
    fields = _rate_fields(schedule)
    config = schedule.get_config()
    scaled = {name: _times(config[name], factor) for name in fields if config[name] is not None}
    return type(schedule).from_config({**config, **scaled})


def largest_rate(schedule: Any) -> float:
    """Return the largest of the rates in a schedule's config.

    Raises:
        RecipeError: The class is not Keras's own.
    """
    fields = _rate_fields(schedule)
    config = schedule.get_config()
    rates = [config[name] for name in fields if config[name] is not None]
    return float(max(max(rate) if isinstance(rate, (list, tuple)) else rate for rate in rates))


def follow_schedule(optimizer: Any, rates: LearningRate, held: float) -> LearningRate:
    """Scale the schedule object of an optimizer, if it has one; return rates that tell its values.

    Args:
        optimizer: Whose largest rate is ``held`` so far.
        rates: Their target becomes its largest rate.
        held: The largest rate so far.

    Raises:
        RecipeError: The schedule's class is not Keras's own.
    """
    schedule = schedule_of(optimizer)
    if schedule is None:
        return rates
    scaled = scale_schedule(schedule, rates.target / held)
    innermost(optimizer).learning_rate = scaled
    target, steps = rates.target, rates.steps
    return replace(rates, schedule=lambda epoch: float(to_numpy(scaled(round(epoch * steps)))) / target)


def check_schedule(optimizer: Any, rates: LearningRate, accumulate: int) -> None:
    """Refuse what would change the rate beside a schedule object.

    Raises:
        RecipeError: There are a schedule object and a warm-up, a schedule of the recipe, or accumulation.
    """
    schedule = schedule_of(optimizer)
    if schedule is None:
        return
    beside = {"warmup_epochs": rates.warmup_steps, "schedule": rates.schedule, "accumulate": accumulate - 1}
    for name, value in beside.items():
        if value:
            raise RecipeError(
                f"the optimizer's learning rate is a {type(schedule).__name__}, which does not go with {name}; leave "
                f"{name} out, or give the optimizer a number"
            )


def _rate_fields(schedule: Any) -> tuple[str, ...]:
    kind = type(schedule)
    if kind is not getattr(keras().optimizers.schedules, kind.__name__, None) or kind.__name__ not in _RATES:
        raise RecipeError(
            f"{kind.__name__} is a learning-rate schedule of your own, which hvdkit cannot scale; multiply what its "
            "__call__ returns by hvdkit.keras.scale_lr(1.0), or give a number and Recipe(schedule=...)"
        )
    return _RATES[kind.__name__]


def _times(rate: Any, factor: float) -> Any:
    return [value * factor for value in rate] if isinstance(rate, (list, tuple)) else rate * factor
