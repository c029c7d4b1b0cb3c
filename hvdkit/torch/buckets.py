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
        self.missing = set(range(len(parameters)))
        self._elements = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(self._elements + len(parameters), dtype=first.dtype, device=first.device)
        self.views = _views(self.flat, parameters)
        # no engine but one knows complex numbers
        self.wire = torch.view_as_real(self.flat).view(-1) if first.is_complex() else self.flat
        self.handle: Any = None

    @property
    def lengths(self) -> list[int]:
        """The parameters' numbers of elements in ``wire``."""
        return [parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in self.parameters]

    def fill(self, passes: int) -> None:
        """Move the gradients in, divided by ``passes``."""
        with torch.no_grad():
            present = [i for i in range(len(self.parameters)) if i not in self.missing]
            sources = [(self.views[i], self.parameters[i].grad) for i in present]
            moved = [(view, grad) for view, grad in sources if grad is not None and grad.data_ptr() != view.data_ptr()]
            if moved:
                torch._foreach_copy_([view for view, _ in moved], [grad for _, grad in moved])
            # autograd's own tensors are let go at once, so that gradients are not held twice
            for i in present:
                self.parameters[i].grad = self.views[i]
            gradients, presence = self.flat[: self._elements], self.flat[self._elements :]
            if passes != 1:
                gradients.mul_(1.0 / passes)
            presence.fill_(1.0)
            if self.missing:
                torch._foreach_zero_([self.views[i] for i in self.missing])
                presence[list(self.missing)] = 0.0

    def unpack(self) -> None:
        """Make the reduced gradients the parameters' own."""
        for i in self.missing:
            if float(self.flat[self._elements + i].real) != 0.0:
                self.parameters[i].grad = self.views[i]
        self.missing = set(range(len(self.parameters)))


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
