"""Packs a function for other processes, or names the variable that stands in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import cloudpickle

from hvdkit.errors import LaunchError


def pack(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Pickle a function with its arguments.

    Raises:
        LaunchError: Something cannot be pickled; the message names it.
    """
    try:
        data: bytes = cloudpickle.dumps((function, tuple(args), dict(kwargs)))
        return data
    except Exception as error:  # noqa: BLE001 - objects raise what they like when they are pickled
        problem = error
    for name, value in _parts(function, args, kwargs):
        culprit = _culprit(name, value, set())
        if culprit is not None:
            raise LaunchError(
                f"{culprit} cannot be sent to other processes ({problem}); make it inside the function"
            ) from None
    raise LaunchError(f"the function cannot be sent to other processes ({problem})")


def _parts(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield f"function {getattr(function, '__name__', function)!r}", function
    for position, value in enumerate(args):
        yield f"argument {position}", value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value


def _culprit(name: str, value: Any, seen: set[int]) -> str | None:
    """Return the name of the innermost thing that cannot be pickled, or None if all can."""
    if id(value) in seen or _is_picklable(value):
        return None
    seen.add(id(value))
    if isinstance(value, FunctionType):
        for inner_name, inner in _variables(value):
            found = _culprit(f"variable {inner_name!r} (used in {value.__name__!r})", inner, seen)
            if found is not None:
                return found
    return f"{name}, a {type(value).__name__},"


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses from outside: closure, globals, defaults."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for value in function.__defaults__ or ():
        yield "default value", value
    yield from (function.__kwdefaults__ or {}).items()


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_picklable(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001 - objects raise what they like when they are pickled
        return False
    return True
