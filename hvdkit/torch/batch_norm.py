"""BatchNorm over the global batch, on the CPU and on GPUs, over every engine."""

from __future__ import annotations

import copy
import copyreg
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from hvdkit.engines.channel import Channel
from hvdkit.engines.table import open_channel
from hvdkit.errors import DataError, ModelError, RecipeError
from hvdkit.job.world import World
from hvdkit.training.batches import current_batch_counts
from hvdkit.training.evaluation_batches import in_evaluation_loop
from hvdkit.training.loop_weight import LOOP_WEIGHT


class _Synchronised(nn.modules.batchnorm._BatchNorm):
    """Takes mean and variance over the samples of all ranks while it trains; otherwise torch's own layer."""

    _channel: Channel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise (n, channels, ...); the ranks' n may differ."""
        if not self.training:
            return super().forward(x)
        self._check_input_dim(x)
        if x.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got {x.shape[1]}")
        return _normalise(self, x)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        other = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        memo |= {id(held): held for held in (self._channel,)}
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return other

    def __reduce_ex__(self, protocol: Any) -> Any:
        # a pickle holds torch's own layer, so that it opens without hvdkit
        state = {name: value for name, value in self.__dict__.items() if name != "_channel"}
        return copyreg._reconstructor, (plain_kind(self), object, None), state  # type: ignore[attr-defined]


class SyncBatchNorm1d(_Synchronised, nn.BatchNorm1d):
    """``BatchNorm1d`` over the global batch."""


class SyncBatchNorm2d(_Synchronised, nn.BatchNorm2d):
    """``BatchNorm2d`` over the global batch."""


class SyncBatchNorm3d(_Synchronised, nn.BatchNorm3d):
    """``BatchNorm3d`` over the global batch."""


_KINDS: dict[type[nn.Module], type[_Synchronised]] = {
    nn.BatchNorm1d: SyncBatchNorm1d,
    nn.BatchNorm2d: SyncBatchNorm2d,
    nn.BatchNorm3d: SyncBatchNorm3d,
}


def plain_kind(module: nn.Module) -> type[nn.Module]:
    """Return a layer's class, torch's own where it is a synchronised one."""
    return next((kind for kind, ours in _KINDS.items() if ours is type(module)), type(module))


def synchronise_batch_norm(world: World, model: nn.Module | None) -> None:
    """Turn the BatchNorm layers of a model into synchronised ones, in place; parameters and buffers stay.

    Raises:
        RecipeError: There is no model.
    """
    if model is None:
        raise RecipeError("sync_batchnorm needs the model; call distribute(optimizer, model, sync_batchnorm=True)")
    layers = [module for module in model.modules() if type(module) in _KINDS]
    if world.size == 1 or not layers:
        return
    channel = open_channel(world.engine, "torch")
    for layer in layers:
        layer.__class__ = _KINDS[type(layer)]
        layer.__dict__.update(_channel=channel)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _normalise(layer: _Synchronised, x: torch.Tensor) -> torch.Tensor:
    if in_evaluation_loop():
        raise ModelError(
            "a model with synchronised BatchNorm is in training mode in a loop over shard(train=False), where ranks "
            "may have different numbers of batches; call model.eval() first"
        )
    statistics = _GlobalStatistics(layer._channel, counted=current_batch_counts(), weight=LOOP_WEIGHT.now)
    return cast(torch.Tensor, _BatchNorm.apply(x, layer.weight, layer.bias, layer, statistics))


class _GlobalStatistics:
    """Sums over ranks; a rank that only repeats a sample to keep the others company does not count."""

    def __init__(self, channel: Channel, counted: bool, weight: float) -> None:
        self._channel, self._share, self._weight = channel, float(counted), weight

    def mean_and_variance(self, x: torch.Tensor, axes: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return mean, biased variance and number of values per channel over all ranks, in float64.

        In float64 the difference of squares loses nothing that float32 inputs have.
        """
        variance, mean = torch.var_mean(x, axes, correction=0)
        variance, mean = variance.double(), mean.double()
        count = torch.full_like(mean[:1], x.numel() / x.shape[1])
        own = torch.cat([torch.ones_like(count), mean, variance + mean.square()])
        count, mean, squares = self._sum(own * count).split([1, len(mean), len(mean)])
        if x.numel() == x.shape[1] and count.item() <= 1.0:
            raise DataError(
                "BatchNorm got one value per channel in the whole global batch; leave out short batches with "
                "Shard(uneven='drop')"
            )
        mean, squares = mean / count, squares / count
        return mean, (squares - mean.square()).clamp(min=0.0), count

    def sums(self, *values: torch.Tensor) -> list[torch.Tensor]:
        """Return sums per channel of gradients over all ranks, in float64; they act on samples that count.

        Each rank's gradients weigh what its batch does. Its reducer will multiply by that what comes of them.
        """
        joined = self._sum(torch.cat(values).double() * self._weight)
        joined = joined * (self._share / self._weight if self._weight else 0.0)
        return list(joined.split([len(value) for value in values]))

    def _sum(self, values: torch.Tensor) -> torch.Tensor:
        # under a name of its own: a pass on one rank alone must not look like a reduction of gradients
        with self._channel.engine.waiting("the statistics of SyncBatchNorm"):
            return cast(torch.Tensor, self._channel.allreduce(values * self._share))


class _BatchNorm(torch.autograd.Function):
    """y = weight (x - mean) / sqrt(variance + eps) + bias, with mean and variance of all ranks' samples."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        layer: _Synchronised,
        statistics: _GlobalStatistics,
    ) -> torch.Tensor:
        wide = _wide(x)
        axes = [axis for axis in range(x.dim()) if axis != 1]
        mean, variance, count = statistics.mean_and_variance(wide, axes)
        _update_running(layer, mean, variance, count)
        mean, inverse = mean.to(wide.dtype), (variance + layer.eps).rsqrt().to(wide.dtype)
        ctx.save_for_backward(x, weight, mean, inverse, count)
        ctx.axes, ctx.statistics, ctx.bias_type = axes, statistics, None if bias is None else bias.dtype
        normal = (wide - _spread(mean, x)) * _spread(inverse, x)
        if weight is not None:
            normal = normal * _spread(weight.to(wide.dtype), x)
        if bias is not None:
            normal = normal + _spread(bias.to(wide.dtype), x)
        return normal.to(x.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight, mean, inverse, count = ctx.saved_tensors
        dy = _wide(gradients[0])
        normal = (_wide(x) - _spread(mean, x)) * _spread(inverse, x)
        own_dy, own_dy_normal = dy.sum(ctx.axes), (dy * normal).sum(ctx.axes)
        dy_sum, dy_normal_sum = ctx.statistics.sums(own_dy, own_dy_normal)
        mean_dy, mean_dy_normal = (dy_sum / count).to(dy.dtype), (dy_normal_sum / count).to(dy.dtype)
        scale = inverse if weight is None else inverse * weight.to(inverse.dtype)
        dx = (dy - _spread(mean_dy, x) - normal * _spread(mean_dy_normal, x)) * _spread(scale, x)
        d_weight = None if weight is None else own_dy_normal.to(weight.dtype)
        d_bias = own_dy.to(ctx.bias_type) if ctx.bias_type is not None else None
        return dx.to(x.dtype), d_weight, d_bias, None, None


def _update_running(layer: _Synchronised, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
    if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
        return
    layer.num_batches_tracked.add_(1)
    momentum = 1.0 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    unbiased = variance * (count / (count - 1.0).clamp(min=1.0))
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), momentum)
    layer.running_var.lerp_(unbiased.to(layer.running_var.dtype), momentum)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Return 16-bit numbers in float32, others as they are."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _spread(per_channel: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return a view of one number per channel that fits (n, channels, ...)."""
    return per_channel.view(1, -1, *[1] * (x.dim() - 2))
