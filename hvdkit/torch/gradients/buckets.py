"""Flat buckets of gradients, in the order in which backward produces them."""

from __future__ import annotations

import weakref
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
        self.parameters = parameters
        self.handle: Any = None
        self._elements = sum(parameter.numel() for parameter in parameters)
        self._missing: list[int] = []
        self._handed_over: list[weakref.ref[torch.Tensor]] = []
        self._in_one_memory = False
        self.forget()

    def forget(self) -> None:
        """Expect new gradients."""
        self.gradients: list[torch.Tensor | None] = [None] * len(self.parameters)
        self.awaited = len(self.parameters)

    @property
    def wire(self) -> torch.Tensor:
        """What is sent: ``flat``, complex numbers as pairs, which all engines know."""
        return torch.view_as_real(self.flat).view(-1) if self.flat.is_complex() else self.flat

    @property
    def gradient_part(self) -> torch.Tensor:
        """The gradients alone, without the numbers behind them."""
        return self.flat[: self._elements]

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
        in_place = self._added_to_in_place()
        if self._in_one_memory and len(in_place) == len(self.parameters):
            self.views, self._kept = list(in_place.values()), {}
            self.flat = self.views[0].as_strided((self._elements + len(self.parameters),), (1,), 0)
        else:
            self._take_memory()
            self._kept = in_place
        targets, sources = [], []
        for index, (gradient, view) in enumerate(zip(self.gradients, self.views, strict=True)):
            if gradient is not None and gradient is not view:
                targets.append(view)
                sources.append(gradient)
                if index not in self._kept:
                    # autograd's own tensors are let go at once, so that gradients are not held twice
                    self.parameters[index].grad = view
        # whatever else arrives in this pass is one too many
        self.gradients = list(self.views)
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(targets, sources)
            presence = self.flat[self._elements :]
            if passes != 1:
                self.gradient_part.mul_(1.0 / passes)
            presence.fill_(1.0)
            if self._missing:
                torch._foreach_zero_([self.views[index] for index in self._missing])
                presence[self._missing] = 0.0

    def spoil(self) -> None:
        """Bring NaN instead of gradients that are not right, so that no rank goes on with what comes of them."""
        self._missing, self._kept = [], {}
        self._take_memory()
        self.flat.fill_(float("nan"))

    def unpack(self) -> None:
        """Make the reduced gradients the parameters' own; the bucket keeps no memory."""
        for index in self._missing:
            if float(self.flat[self._elements + index].real) != 0.0:
                self.parameters[index].grad = self.views[index]
        for index, gradient in self._kept.items():
            gradient.copy_(self.views[index])
        held = [self._kept.get(index, view) for index, view in enumerate(self.views)]
        self._handed_over, self._in_one_memory = [weakref.ref(gradient) for gradient in held], not self._kept
        del self.flat, self.views, self._kept
        self.forget()

    def _added_to_in_place(self) -> dict[int, torch.Tensor]:
        """Return the gradients that were handed over before and not cleared since.

        The user may hold them, and new numbers belong into them; what was cleared must stay as it was.
        """
        return {
            index: gradient
            for index, (gradient, reference) in enumerate(zip(self.gradients, self._handed_over, strict=False))
            if gradient is not None and gradient is reference()
        }

    def _take_memory(self) -> None:
        first = self.parameters[0]
        self.flat = torch.empty(self._elements + len(self.parameters), dtype=first.dtype, device=first.device)
        self.views = _views(self.flat, self.parameters)


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
