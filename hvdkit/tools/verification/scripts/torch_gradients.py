"""This rank's gradients of each backward pass, and what hvdkit has made of them when it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import hvdkit.torch
from hvdkit.tools.verification.scripts.recording import Recorder

Gradient = dict[int, torch.Tensor]


class _Followed:
    """One distributed optimizer's gradients since their last reduction."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> None:
        self.optimizer = optimizer
        self.accumulate = int(options.get("accumulate", 1))
        self.reduction = str(options.get("reduction", "average"))
        self.compression = str(options.get("compression", "none"))
        self.clipped = options.get("clip_norm") is not None
        self.passes = 0
        self.came = False
        self.local: Gradient = {}
        self.before: Gradient = {}

    def parameters(self) -> Iterator[torch.Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]


class Gradients:
    """Notes gradients before and after their reduction."""

    def __init__(self, recorder: Recorder, name: Callable[[torch.Tensor], str]) -> None:
        self._recorder, self._name = recorder, name
        self._followed: list[_Followed] = []
        self._hooked: set[int] = set()
        self._inside = self._only_local = False

    def install(self) -> None:
        """Watch backward passes."""
        backward, no_sync = torch.autograd.backward, hvdkit.torch.no_sync

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._followed:
                return backward(*args, **kwargs)
            self._begin()
            self._inside = True
            try:
                result = backward(*args, **kwargs)
            finally:
                self._inside = False
            self._end()
            return result

        @contextmanager
        def local(optimizer: torch.optim.Optimizer) -> Iterator[None]:
            self._only_local = True
            try:
                with no_sync(optimizer):
                    yield
            finally:
                self._only_local = False

        torch.autograd.backward = noted
        hvdkit.torch.no_sync = local

    def follow(self, optimizer: torch.optim.Optimizer, options: dict[str, Any]) -> None:
        """Follow an optimizer, before hvdkit puts its hooks on the parameters."""
        self._followed.append(_Followed(optimizer, options))
        self._hook()

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what a step has reduced that came before all passes of an accumulation; clipping has changed it."""
        for followed in self._followed:
            if followed.optimizer is optimizer and followed.passes:
                if not followed.clipped:
                    self._note(followed)
                followed.passes = 0

    def _hook(self) -> None:
        for followed in self._followed:
            for parameter in followed.parameters():
                if parameter.requires_grad and id(parameter) not in self._hooked:
                    self._hooked.add(id(parameter))
                    parameter.register_hook(self._taker(parameter))

    def _taker(self, parameter: torch.Tensor) -> Callable[[torch.Tensor], None]:
        def take(gradient: torch.Tensor) -> None:
            if not self._inside:
                return
            for followed in self._followed:
                if any(parameter is other for other in followed.parameters()):
                    held = followed.local.get(id(parameter))
                    dense = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach().clone()
                    dense = dense * self._recorder.weight if followed.reduction != "sum" else dense
                    followed.local[id(parameter)] = dense if held is None else held + dense
                    followed.came = True

        return take

    def _begin(self) -> None:
        self._hook()
        for followed in self._followed:
            followed.came = False
            if followed.passes == 0:
                followed.local = {}
                followed.before = {
                    id(parameter): parameter.grad.detach().to_dense().clone()
                    for parameter in followed.parameters()
                    if parameter.grad is not None
                }

    def _end(self) -> None:
        for followed in self._followed:
            # a pass that has nothing to do with this optimizer on this rank may be one on another
            followed.passes += 1
            if self._only_local or followed.passes < followed.accumulate:
                continue
            if followed.came or followed.passes > 1:
                self._note(followed)
            followed.passes = 0

    def _note(self, followed: _Followed) -> None:
        groups: dict[str, dict[str, Any]] = {"local": {}, "before": {}, "after": {}}
        wire = followed.compression
        for parameter in followed.parameters():
            name, key = self._name(parameter), id(parameter)
            if parameter.grad is not None:
                groups["after"][name] = _array(parameter.grad)
                wire = str(parameter.grad.dtype).removeprefix("torch.") if followed.compression == "none" else wire
            if key in followed.local:
                groups["local"][name] = _array(followed.local[key])
            if key in followed.before:
                groups["before"][name] = _array(followed.before[key])
        self._recorder.reduced(followed.passes, followed.reduction, wire, groups)


def _array(tensor: torch.Tensor) -> Any:
    value = tensor.detach().to_dense().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
