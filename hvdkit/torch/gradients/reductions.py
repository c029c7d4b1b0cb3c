"""How one bucket becomes the average over ranks: as it is, predivided, in 16 bits, or by Adasum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from hvdkit.engines.channel import Channel
from hvdkit.recipe.steps import Distribute
from hvdkit.training.batches import current_batch_counts
from hvdkit.training.narrow import largest_term

_NARROW = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Reduction(ABC):
    """Starts and finishes the reduction of flat buckets, in place.

    Attributes:
        repeatable: Whether what is reduced already stays as it is when it is reduced again.
        weighs: Whether a short batch counts for less than a full one.
    """

    repeatable = weighs = True

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @abstractmethod
    def start(self, flat: torch.Tensor, lengths: list[int]) -> Any:
        """Start to reduce a bucket; ``lengths`` are its parameters' numbers of elements. Return a handle."""

    @abstractmethod
    def finish(self, flat: torch.Tensor, handle: Any) -> None:
        """Wait, and leave the result in the bucket."""

    def share(self, passes: int) -> float:
        """Return what sparse gradients are multiplied by before they are added up over ranks."""
        return 1.0 / (self._channel.size * passes)

    def losses(self) -> dict[str, int]:
        """Return how many elements this rank has sent changed so far: ``clipped`` and ``lost`` (rounded to 0)."""
        return {"clipped": 0, "lost": 0}


class Mean(Reduction):
    """The engine's own average."""

    def start(self, flat: torch.Tensor, lengths: list[int]) -> Any:
        """Start the average."""
        return self._channel.start_mean(flat)

    def finish(self, flat: torch.Tensor, handle: Any) -> None:
        """Wait for it."""
        self._channel.wait(handle)


class Sum(Reduction):
    """The sum over all ranks, for losses that are sums; a rank that has no sample left adds nothing."""

    repeatable = weighs = False

    def start(self, flat: torch.Tensor, lengths: list[int]) -> Any:
        """Start the sum."""
        if not current_batch_counts():
            flat[: sum(lengths)].zero_()
        return self._channel.start_allreduce(flat)

    def finish(self, flat: torch.Tensor, handle: Any) -> None:
        """Wait for it."""
        self._channel.wait(handle)

    def share(self, passes: int) -> float:
        """Return 1, or 0 where a rank repeats a sample."""
        return float(current_batch_counts())


class PredividedMean(Reduction):
    """Divided by a factor before the sum and by size / factor after it."""

    def __init__(self, channel: Channel, factor: float) -> None:
        super().__init__(channel)
        self._before, self._after = 1.0 / factor, factor / channel.size

    def start(self, flat: torch.Tensor, lengths: list[int]) -> Any:
        """Divide, and start the sum."""
        return self._channel.start_allreduce(flat.mul_(self._before))

    def finish(self, flat: torch.Tensor, handle: Any) -> None:
        """Wait, and divide by the rest."""
        self._channel.wait(handle)
        flat.mul_(self._after)


class NarrowMean(Reduction):
    """The average of 16-bit numbers, divided before the sum and limited so that finite ones have a finite sum."""

    def __init__(self, channel: Channel, compression: str, factor: float) -> None:
        super().__init__(channel)
        self._dtype, self._factor = _NARROW[compression], factor
        self._limit = largest_term(compression, channel.size)
        self._counts: dict[torch.device, torch.Tensor] = {}

    def start(self, flat: torch.Tensor, lengths: list[int]) -> Any:
        """Start the sum of what fits into 16 bits."""
        scaled = flat / self._factor
        # what is infinite stays so, for a gradient scaler to see
        large = (scaled.abs() > self._limit) & scaled.isfinite()
        narrow = torch.where(large, scaled.clamp(-self._limit, self._limit), scaled).to(self._dtype)
        # counted where the gradients are, so that no host waits for a GPU
        counts = torch.stack([large.sum(), ((narrow == 0) & (flat != 0)).sum()])
        if flat.device not in self._counts:
            self._counts[flat.device] = torch.zeros_like(counts)
        self._counts[flat.device] += counts
        return self._channel.start_allreduce(narrow)

    def finish(self, flat: torch.Tensor, handle: Any) -> None:
        """Wait, and widen the sum."""
        flat.copy_(self._channel.wait(handle))
        if self._factor != self._channel.size:
            flat.mul_(self._factor / self._channel.size)

    def losses(self) -> dict[str, int]:
        """Return how many elements of this rank were limited, and how many became 0."""
        counts = [each.tolist() for each in self._counts.values()]
        return {"clipped": sum(clipped for clipped, _ in counts), "lost": sum(lost for _, lost in counts)}


class Adasum(Reduction):
    """Adasum (Maleki et al., 2020, "Scaling distributed training with adaptive summation"), parameter by parameter."""

    def start(self, flat: torch.Tensor, lengths: list[int]) -> Any:
        """Start Adasum for each parameter, and the sum of what stands behind them."""
        *gradients, presence = flat.split([*lengths, flat.numel() - sum(lengths)])
        return [self._channel.start_adasum(each) for each in gradients] + [self._channel.start_allreduce(presence)]

    def finish(self, flat: torch.Tensor, handle: Any) -> None:
        """Wait for all."""
        for each in handle:
            self._channel.wait(each)


def make_reduction(channel: Channel, settings: Distribute) -> Reduction:
    """Choose the reduction that the settings describe.

    Raises:
        EngineError: The engine cannot do it.
    """
    if settings.reduction == "sum":
        return Sum(channel)
    if channel.size == 1:
        return Mean(channel)
    if settings.reduction == "adasum":
        channel.check_adasum()
        return Adasum(channel)
    channel.check_compression(settings.compression)
    factor = settings.gradient_predivide
    if settings.compression != "none":
        return NarrowMean(channel, settings.compression, factor or float(channel.size))
    return Mean(channel) if factor is None else PredividedMean(channel, factor)
