"""Which gradients exist: one that only some ranks have counts as zero on the others, as in one large batch."""

from __future__ import annotations

import functools
import operator
import weakref
import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from hvdkit.engines.channel import Channel
from hvdkit.errors import ModelError
from hvdkit.keras_common.compat import library, name_of
from hvdkit.keras_common.gradients.arithmetic import gradient_math

_DENSE, _SPARSE = 1, 2

Kinds = tuple[int, ...]  # of each gradient the kinds that ranks have, as bits


@dataclass(frozen=True)
class _Agreed:
    """What ranks agreed on, as long as what they agreed about lives."""

    about: list[weakref.ref[Any]]
    kinds: Kinds

    def holds(self) -> bool:
        return all(reference() is not None for reference in self.about)


class Presence:
    """Completes lists of gradients, so that every rank reduces the same ones.

    Outside of a ``tf.function``, ranks exchange what they have each time. Inside, where a rank may trace again alone,
    they do so when a place in the function is traced for the first time, to which all ranks come in the same order; a
    later trace must fit what was agreed on.
    """

    def __init__(self, channel: Channel) -> None:
        self._engine = channel.engine
        self._agreed: dict[Hashable, _Agreed] = {}
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def complete(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Return the gradients with zeros for those that only other ranks have; None on all ranks stays None.

        Args:
            gradients: This rank's, dense, sparse or None.
            variables: What they belong to, the same on all ranks.

        Raises:
            ModelError: Ranks have gradients of other variables; or, on this rank alone, a ``tf.function`` that is
                traced again has a gradient that no rank had at first.
        """
        if library() == "jax" or len(gradients) != len(variables):
            return gradients  # on JAX every variable has one; of another number, Keras says what is wrong
        math = gradient_math()
        mine = tuple(0 if g is None else _SPARSE if math.is_sparse(g) else _DENSE for g in gradients)
        kinds = self._exchange(mine, variables) if math.runs_at_once() else self._kinds_in_trace(mine, variables)
        return [
            _as_kind(gradient, kind, variable)
            for gradient, kind, variable in zip(gradients, kinds, variables, strict=True)
        ]

    def _kinds_in_trace(self, mine: Kinds, variables: list[Any]) -> Kinds:
        graph, function, site = gradient_math().place_in_trace()
        number = self._calls[graph] = self._calls.get(graph, 0) + 1
        key = id(function), site, number, tuple(map(id, variables))
        agreed = self._agreed.get(key)
        if agreed is None or not agreed.holds():
            self._agreed = {known: entry for known, entry in self._agreed.items() if entry.holds()}
            about = [weakref.ref(entry) for entry in (function, *variables) if entry is not None]
            agreed = self._agreed[key] = _Agreed(about, self._exchange(mine, variables))
        for own, kind, variable in zip(mine, agreed.kinds, variables, strict=True):
            if own and not kind:
                raise ModelError(
                    f"{name_of(variable)!r} has a gradient in a tf.function that is traced again, but had none on any "
                    "rank when it was traced first; let every trace find the same gradients, on some rank at least"
                )
        return agreed.kinds

    def _exchange(self, mine: Kinds, variables: list[Any]) -> Kinds:
        """Return the kinds of all ranks, joined."""
        layout = [(str(variable.dtype), tuple(variable.shape)) for variable in variables]
        gathered = self._engine.allgather_object((zlib.crc32(repr(layout).encode()), mine))
        for rank, (other, kinds) in enumerate(gathered):
            if other != gathered[0][0]:
                raise ModelError(
                    f"rank 0 has gradients of {len(gathered[0][1])} variables, rank {rank} of {len(kinds)}, which "
                    "differ in shape or order; take the same variables on all ranks, with None for no gradient"
                )
        by_gradient = zip(*(kinds for _, kinds in gathered), strict=True)
        return tuple(functools.reduce(operator.or_, kinds) for kinds in by_gradient)


def _as_kind(gradient: Any, kind: int, variable: Any) -> Any:
    """Return a gradient as all ranks have it: dense where any rank has a dense one."""
    if kind == 0:
        return None
    if kind == _SPARSE:
        return gradient_math().as_rows(gradient, variable)
    return gradient_math().as_whole(gradient, variable)


def presence(channel: Channel) -> Presence:
    """Return what completes the gradients of a channel; tapes come and go, but what was agreed on stays."""
    return channel.kept.setdefault("presence", Presence(channel))
