"""What layers and optimizers were made with, in words that all frameworks share.

Weights are carried from one framework to another before they are compared, and a curve of some updates does not show
every default that differs. Constructor values do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvdkit.recipe.optimizers import AdamW, Optimizer
from hvdkit.tools.verification.storage import Arrays

Argument = tuple[str, Any, Any]
"""A framework's name of an argument, the value there, and what that means in all frameworks."""

_RELATIVE = 1e-6
_FEW = 30
# standard errors of a measured spread; that of a uniform or normal sample of n is below 1 / sqrt(2 n)
_ERRORS = 6.0


@dataclass(frozen=True)
class Part:
    """A layer, or the optimizer.

    Attributes:
        kind: What it is, by the name that all frameworks share: ``BatchNorm``, ``LayerNorm``, ``Adam`` and so on.
        name: Its name in the model.
        arguments: By the name that all frameworks share.
    """

    kind: str
    name: str
    arguments: dict[str, Argument]


def read_arguments(source: Any, names: Mapping[str, str]) -> dict[str, Argument]:
    """Return the attributes of a layer, or the values of a dict, by the names that all frameworks share."""
    found = {}
    for shared, own in names.items():
        value = source.get(own) if isinstance(source, Mapping) else getattr(source, own, None)
        if value is not None:
            found[shared] = (own, _plain(value), _plain(value))
    return found


def decay_of(value: float, decoupled: bool) -> Any:
    """Return what a weight decay means: a part of the gradient (L2), or apart from it (Loshchilov and Hutter, 2019)."""
    return ["decoupled" if decoupled else "L2", float(value)] if value else 0.0


def neutral_optimizer(source: Optimizer) -> Part:
    """Return what one of hvdkit's optimizers was made with."""
    own = dataclasses.asdict(source)
    names = {"epsilon": "eps", "momentum": "momentum", "nesterov": "nesterov"}
    arguments = read_arguments(own, {**names, "initial_accumulator_value": "initial_accumulator"})
    for number, beta in enumerate(own.get("betas", ())):
        arguments[f"beta_{number + 1}"] = (f"betas[{number}]", beta, beta)
    decay = own.get("weight_decay", 0.0)
    arguments["weight_decay"] = ("weight_decay", decay, decay_of(decay, isinstance(source, AdamW)))
    return Part(type(source).__name__, "", arguments)


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(part) for part in value]
    return value if isinstance(value, (bool, int, str)) else float(value)


def differing(first: str, theirs: Sequence[Part], other: str, ours: Sequence[Part]) -> list[str]:
    """Return each argument whose values mean different things in two frameworks, in words."""
    found = _kinds_of_optimizers(first, theirs, other, ours)
    for mine, yours in _pairs(ours, theirs):
        for shared in [shared for shared in mine.arguments if shared in yours.arguments]:
            (name, value, meaning), (their_name, their_value, their_meaning) = (
                part.arguments[shared] for part in (mine, yours)
            )
            if not _same(meaning, their_meaning):
                found.append(
                    f"{_named(mine)}: {name}={_short(value)} in {other}, {their_name}={_short(their_value)} in {first}"
                )
    return found


def _kinds_of_optimizers(first: str, theirs: Sequence[Part], other: str, ours: Sequence[Part]) -> list[str]:
    mine, yours = (next(part.kind for part in parts if not part.name) for parts in (ours, theirs))
    return [] if mine == yours else [f"the optimizer is {mine} in {other}, {yours} in {first}"]


def not_paired(first: str, theirs: Sequence[Part], other: str, ours: Sequence[Part]) -> list[str]:
    """Return the kinds of layers of which two models have different numbers, such as functions that are no layers."""
    layers = [[part.kind for part in parts if part.name] for parts in (theirs, ours)]
    counts = {kind: [kinds.count(kind) for kinds in layers] for kind in layers[0] + layers[1]}
    return [f"{kind}: {a} in {first}, {b} in {other}" for kind, (a, b) in counts.items() if a != b]


def _pairs(ours: Sequence[Part], theirs: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Pair the parts of one kind in the order of the model, where both models have as many."""
    for kind in {part.kind: None for part in ours}:
        mine, yours = ([part for part in parts if part.kind == kind] for parts in (ours, theirs))
        if len(mine) == len(yours):
            yield from zip(mine, yours, strict=True)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=_RELATIVE, abs_tol=1e-15)
    return bool(a == b)


def _named(part: Part) -> str:
    return f"{part.kind} {part.name!r}" if part.name else part.kind


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def differently_drawn(first: str, theirs: Arrays, other: str, ours: Arrays) -> list[str]:
    """Return each pair of arrays whose initial values were not drawn alike, in words; arrays are given in one order."""
    found = []
    for (name, mine), (their_name, yours) in zip(ours.items(), theirs.items(), strict=True):
        a, b = (np.asarray(values, np.float64) for values in (mine, yours))
        if not _drawn_alike(a, b):
            found.append(f"{name} is {_drawn(a)} in {other}, {their_name} is {_drawn(b)} in {first}")
    return found


def _drawn_alike(a: Any, b: Any) -> bool:
    constant = [np.all(values == values.flat[0]) for values in (a, b)]
    if all(constant) or any(constant):
        return all(constant) and bool(np.isclose(a.flat[0], b.flat[0]))
    if min(a.size, b.size) < _FEW:
        return True
    return bool(abs(math.log(a.std() / b.std())) < _ERRORS * math.sqrt(0.5 / a.size + 0.5 / b.size))


def _drawn(values: Any) -> str:
    if np.all(values == values.flat[0]):
        return f"{values.flat[0]:g}"
    return f"drawn with deviation {values.std():.3g}"
