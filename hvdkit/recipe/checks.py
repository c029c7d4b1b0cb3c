"""Checks of a declaration's fields, whose refusals name the field, its value and what is allowed."""

from __future__ import annotations

import math

from hvdkit.errors import RecipeError


def fail(owner: object, name: str, allowed: str) -> None:
    """Refuse a field: say what it is and what it must be."""
    raise RecipeError(f"{type(owner).__name__}.{name} is {getattr(owner, name)!r}; it must be {allowed}")


def one_of(owner: object, name: str, allowed: tuple[str, ...]) -> None:
    """Check that a field is one of these names."""
    value = getattr(owner, name)
    if not isinstance(value, str) or value not in allowed:
        fail(owner, name, "one of " + ", ".join(allowed))


def whole(owner: object, name: str, least: int, optional: bool = False) -> None:
    """Check that a field is a whole number, not below ``least``."""
    value = getattr(owner, name)
    if optional and value is None:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        fail(owner, name, f"a whole number >= {least}" + (" or None" if optional else ""))


def is_number(value: object) -> bool:
    """Say whether a value is a finite number; booleans are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def above_zero(owner: object, name: str) -> None:
    """Check that a field is a number above zero, or None."""
    value = getattr(owner, name)
    if value is not None and not (is_number(value) and value > 0):
        fail(owner, name, "a number > 0 or None")


def true_or_false(owner: object, name: str) -> None:
    """Check that a field is a boolean."""
    if not isinstance(getattr(owner, name), bool):
        fail(owner, name, "True or False")
