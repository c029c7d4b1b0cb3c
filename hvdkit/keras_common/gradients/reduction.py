"""One reduction per update for Keras optimizers and gradient tapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hvdkit.engines.channel import Channel
from hvdkit.engines.table import shared_channel as channel_for_all
from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras_common.compat import library
from hvdkit.recipe.support import check_keras_compression
from hvdkit.training.narrow import largest_term


class Reduction:
    """Averages a list of gradients over all ranks, weighted by the samples behind them.

    Dense gradients travel as one flat tensor with the sample count behind them; sparse ones (``IndexedSlices``) by
    gathering rows.

    Attributes:
        count: Samples behind the gradients of the pass under way, noted by the loss; None if nobody noted it, and then
            every rank counts the same.
        early: Gradients come averaged already, from the outermost optimizer.

    Raises:
        RecipeError: Keras's gradients cannot be sent in this compression.
        EngineError: The engine cannot sum what it sends.
    """

    def __init__(self, channel: Channel, compression: str = "none", clip_norm: float | None = None) -> None:
        check_keras_compression(compression)
        channel.check_compression(compression)
        self._channel = channel
        self._compression, self._clip_norm = compression, clip_norm
        self._math = gradient_math()
        self.count: Any = None
        self.early = False

    def __call__(self, gradients: list[Any]) -> list[Any]:
        """Return the reduced and clipped gradients; None stays None."""
        return self.clip(gradients if self.early else self.average(gradients))

    def average(self, gradients: list[Any]) -> list[Any]:
        """Return the gradients averaged over all ranks; None stays None."""
        if self._channel.size == 1:
            return gradients
        return _present(self._average, gradients)

    def clip(self, gradients: list[Any]) -> list[Any]:
        """Return the gradients clipped to the global norm, if one is set; None stays None."""
        limit = self._clip_norm
        if limit is None:
            return gradients
        return _present(lambda present: list(self._math.clip(present, limit)), gradients)

    def average_early(self, scaled: bool) -> None:
        """Leave the average to the outermost optimizer: with a scaled loss, all ranks then find the same overflow.

        Raises:
            RecipeError: The compression would hide an overflow from that check.
        """
        if scaled and self._compression != "none":
            raise RecipeError(
                f"compression {self._compression!r} limits gradients, which hides the overflow that loss scaling "
                "looks for; use compression='none', or train in bfloat16"
            )
        self.early = True

    def _average(self, gradients: list[Any]) -> list[Any]:
        math = self._math
        count, self.count = (1.0 if self.count is None else self.count), None
        dense = [i for i, gradient in enumerate(gradients) if not math.is_sparse(gradient)]
        parts = [gradients[i] for i in dense]
        means, total = self._means_and_count(parts, count)
        result = list(gradients)
        for i, mean in zip(dense, means, strict=True):
            result[i] = mean
        for i in range(len(gradients)):
            if math.is_sparse(gradients[i]):
                result[i] = math.gather_sparse(self._channel, gradients[i], count, total)
        return result

    def _means_and_count(self, parts: list[Any], count: Any) -> tuple[list[Any], Any]:
        """Return the weighted means of the gradients, and the samples of all ranks."""
        math = self._math
        if self._compression == "fp16":
            total = self._channel.allreduce(math.flatten([], count))[-1]
            half = math.half(
                math.flatten(parts, None) * (math.scalar(count) / total), largest_term("fp16", self._channel.size)
            )
            return math.unflatten(math.single(self._channel.allreduce(half)), parts), total
        flat = self._channel.allreduce(math.flatten(parts, count))
        return math.unflatten(flat, parts, divisor=flat[-1]), flat[-1]


def _present(change: Callable[[list[Any]], list[Any]], gradients: list[Any]) -> list[Any]:
    """Return ``change`` of the gradients that are there, each in its place."""
    places = [i for i, gradient in enumerate(gradients) if gradient is not None]
    result = list(gradients)
    if places:
        present = [gradient_math().as_tensor(gradients[i]) for i in places]
        for i, gradient in zip(places, change(present), strict=True):
            result[i] = gradient
    return result


def shared_channel() -> Channel:
    """Return the one channel of this job; tapes come and go with every step, but to open a channel takes all ranks."""
    return channel_for_all(worlds.current().engine, library())


@functools.cache
def gradient_math() -> Any:
    """Return the module of tensor arithmetic for the library that Keras runs on."""
    if library() == "tf":
        from hvdkit.keras_common.gradients import tf_gradients

        return tf_gradients
    from hvdkit.keras_common.gradients import keras_gradients

    return keras_gradients
