"""One reduction per update for Keras optimizers and gradient tapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvdkit.engines.channel import Channel
from hvdkit.engines.table import shared_channel as channel_for_all
from hvdkit.errors import RecipeError
from hvdkit.job import world as worlds
from hvdkit.keras_common.compat import library
from hvdkit.keras_common.gradients.arithmetic import gradient_math
from hvdkit.keras_common.gradients.presence import presence
from hvdkit.recipe.support import check_keras_compression
from hvdkit.training.narrow import largest_term


class Reduction:
    """Averages a list of gradients over all ranks, weighted by the samples behind them.

    Dense gradients travel as one flat tensor with the sample count behind them; sparse ones (``IndexedSlices``) by
    gathering distinct rows, or whole where that is less; rows stay apart for optimizers that square each by itself.

    Attributes:
        count: What the loss of the pass under way is a mean over, noted by the loss; None if nobody noted it.
        usual_count: What counts then: the same on every rank, or the samples of the batch.
        weigh: Multiplies the gradients of each pass by what its batch counts for, where nothing else does.
        joins_rows: Rows of the same index in sparse gradients may be added up.
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
        self.usual_count: Any = 1.0
        self.weigh: Callable[[list[Any]], list[Any]] = list
        self.joins_rows = True
        self.early = False

    def __call__(self, gradients: list[Any]) -> list[Any]:
        """Return the reduced and clipped gradients; None stays None."""
        return self.clip(gradients if self.early else self.average(gradients))

    def complete(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Return the gradients with zeros for those that only other ranks have; None on all ranks stays None.

        Raises:
            ModelError: Ranks have gradients of other variables, or a ``tf.function`` finds others when traced again.
        """
        if self._channel.size == 1:
            return gradients
        return presence(self._channel).complete(gradients, variables)

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
        count, self.count = (self.usual_count if self.count is None else self.count), None
        result = math.join_rows(gradients) if self.joins_rows else list(gradients)
        dense = [i for i, gradient in enumerate(result) if not math.is_sparse(gradient)]
        sparse = [i for i, gradient in enumerate(result) if math.is_sparse(gradient)]
        rows = [math.number_of_rows(result[i]) for i in sparse] if self.joins_rows else []
        means, total, all_rows = self._means([result[i] for i in dense], count, rows)
        for i, mean in zip(dense, means, strict=True):
            result[i] = mean
        for i, number in zip(sparse, all_rows or [None] * len(sparse), strict=True):
            # float64 gradients, all of them sparse, would lose digits by a share in float32
            weight = math.scalar(count, "float64") / math.scalar(total, "float64")
            result[i] = math.reduce_sparse(self._channel, result[i], weight, number)
        return result

    def _means(self, parts: list[Any], count: Any, rows: list[Any]) -> tuple[list[Any], Any, list[Any]]:
        """Return the weighted means of dense gradients, and over all ranks the samples and the rows of sparse ones."""
        math, numbers = self._math, [count, *rows]
        if self._compression == "fp16":
            tail = self._channel.allreduce(math.flatten([], numbers))
            half = math.half(
                math.weigh(math.flatten(parts, []), math.scalar(count) / tail[0]),
                largest_term("fp16", self._channel.size),
            )
            means = math.unflatten(math.single(self._channel.allreduce(half)), parts) if parts else []
        else:
            flat = self._channel.allreduce(math.flatten(parts, numbers))
            tail = flat[-len(numbers) :]
            means = math.unflatten(flat, parts, divisor=tail[0])
        return means, tail[0], [tail[i] for i in range(1, len(numbers))]


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
