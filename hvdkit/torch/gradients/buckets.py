"""Flat buckets of gradients, in the order in which backward produces them."""

from __future__ import annotations

from typing import Any

import torch

FIRST_BYTES = 1 << 20
NEXT_BYTES = 25 << 20


class Bucket:
    """Some parameters' gradients in one flat tensor, reduced together.

    Behind the gradients stands one number per parameter, 1 on each rank that has a gradient for it, so that a
    parameter which no rank used keeps its gradient None without another collective.
    """

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        self.gradients: list[torch.Tensor | None] = [None] * len(parameters)
        self.awaited = len(parameters)
        self._elements = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(self._elements + len(parameters), dtype=first.dtype, device=first.device)
        self.views = _views(self.flat, parameters)
        # no engine but one knows complex numbers
        self.wire = torch.view_as_real(self.flat).view(-1) if first.is_complex() else self.flat
        self.handle: Any = None
        self._missing: list[int] = []

    @property
    def lengths(self) -> list[int]:
        """The parameters' numbers of elements in ``wire``."""
        return [parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in self.parameters]

    def take(self, index: int, gradient: torch.Tensor | None) -> bool:
        """Note a gradient; say no if there is one already."""
        if self.gradients[index] is not None:
            return False
        self.gradients[index] = gradient
        self.awaited -= 1
        return True

    def take_all(self) -> None:
        """Note what gradients there are, also of earlier passes, where the last pass left parameters out."""
        self.gradients = [parameter.grad for parameter in self.parameters]

    def fill(self, passes: int) -> None:
        """Move the gradients in, divided by ``passes``."""
        self._missing = [index for index, gradient in enumerate(self.gradients) if gradient is None]
        targets, sources = [], []
        for parameter, gradient, view in zip(self.parameters, self.gradients, self.views, strict=True):
            if gradient is not None and gradient is not view:
                targets.append(view)
                sources.append(gradient)
                # autograd's own tensors are let go at once, so that gradients are not held twice
                parameter.grad = view
        # whatever else arrives in this pass is one too many
        self.gradients = list(self.views)
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(targets, sources)
            gradients, presence = self.flat[: self._elements], self.flat[self._elements :]
            if passes != 1:
                gradients.mul_(1.0 / passes)
            presence.fill_(1.0)
            if self._missing:
                torch._foreach_zero_([self.views[index] for index in self._missing])
                presence[self._missing] = 0.0

    def unpack(self) -> None:
        """Make the reduced gradients the parameters' own."""
        for index in self._missing:
            if float(self.flat[self._elements + index].real) != 0.0:
                self.parameters[index].grad = self.views[index]
        self.gradients = [None] * len(self.parameters)
        self.awaited = len(self.parameters)


def _views(flat: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Return each parameter's part of the bucket, in the parameter's own strides where they are dense."""
    views, start = [], 0
    for parameter in parameters:
        strides = parameter.stride() if _is_dense(parameter) else parameter.contiguous().stride()
        views.append(flat.as_strided(parameter.shape, strides, start))
        start += parameter.numel()
    return views


def _is_dense(tensor: torch.Tensor) -> bool:
    """Say whether the elements of a tensor fill its memory without gaps or overlaps."""
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def lay_out(parameters: list[torch.nn.Parameter]) -> list[Bucket]:
    """Divide parameters into buckets, in the order in which their gradients are expected."""
    buckets: list[Bucket] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        group = open_buckets.setdefault((parameter.dtype, parameter.device), [])
        group.append(parameter)
        limit = NEXT_BYTES if buckets else FIRST_BYTES
        if sum(entry.numel() * entry.element_size() for entry in group) >= limit:
            buckets.append(Bucket(open_buckets.pop((parameter.dtype, parameter.device))))
    buckets.extend(Bucket(group) for group in open_buckets.values())
    return buckets
