"""What an optimizer does before each update: reduce, clip, look for drift."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hvdkit.engines.base import Engine
from hvdkit.engines.channel import Channel
from hvdkit.engines.serial.channel import SerialChannel
from hvdkit.engines.table import open_channel
from hvdkit.job.world import World
from hvdkit.recipe.steps import Distribute
from hvdkit.torch.drift import look_before_step, note_distributed
from hvdkit.torch.gradients.parameters import (
    Named,
    check_alike,
    hand_over,
    in_models_order,
    named_parameters,
    reducer_of,
    sparse_parameters,
)
from hvdkit.torch.gradients.reducer import Reducer
from hvdkit.torch.gradients.reductions import make_reduction


class Distribution:
    """The reducers of an optimizer's parameters, each of which has one, also where optimizers share parameters."""

    def __init__(
        self, world: World, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None, settings: Distribute
    ) -> None:
        self.reducers: list[Reducer] = []
        self._own: Reducer | None = None
        self._world, self._settings = world, settings
        self._optimizer = weakref.ref(optimizer)
        self._model = (lambda: None) if model is None else weakref.ref(model)
        self._named: Named = {}
        self._hooked = False
        self.take_parameters()
        if settings.clip_norm is not None:
            self._hook()

    def take_parameters(self) -> None:
        """Reduce the gradients of parameters that the optimizer has and nobody reduces yet; called by all ranks.

        Raises:
            ModelError: They differ between ranks.
        """
        optimizer, model = self._optimizer(), self._model()
        if optimizer is None:
            return
        named = named_parameters(optimizer, model)
        check_alike(self._world, named)
        known = {id(parameter) for parameter in self._named.values()}
        self._named = in_models_order(named, model)
        if self._world.size > 1 or self._settings.accumulate > 1:
            new = {name: entry for name, entry in self._named.items() if id(entry) not in known}
            engine = self._world.engine
            self._reduce(new, engine, lambda: open_channel(engine, "torch"))

    def reduce_alone(self) -> None:
        """Count passes on one process, where nothing else needs a reducer."""
        if not self.reducers:
            self._reduce(self._named, None, SerialChannel)

    def _reduce(self, named: Named, engine: Engine | None, open_one: Callable[[], Channel]) -> None:
        settings = self._settings
        key = (engine, settings.compression, settings.accumulate, settings.gradient_predivide, settings.reduction)
        new: Named = {}
        for name, parameter in named.items():
            reducer = reducer_of(parameter)
            if reducer is None or reducer.key != key:
                new[name] = parameter
            elif reducer not in self.reducers:
                self.reducers.append(reducer)
        if new:
            if self._own is None:
                channel = open_one()
                self._own = Reducer(channel, make_reduction(channel, settings), settings.accumulate, key)
                self.reducers.append(self._own)
            hand_over(new, sparse_parameters(self._model()), self._own)
        self._hook()

    def _hook(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None and not self._hooked:
            self._hooked = True
            note_distributed(optimizer, self._model())
            optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run before ``step()``, or at the end of each call of its closure, whose loss is averaged too."""
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return self._prepare()

        def averaged() -> Any:
            loss = closure()
            self._prepare()
            if loss is None:
                return None
            value = torch.as_tensor(loss).detach()
            joined = self._world.allreduce(float(value), "sum" if self._settings.reduction == "sum" else "mean")
            return torch.full_like(value, joined.item())

        return (args[0], averaged, *args[2:]), {name: value for name, value in kwargs.items() if name != "closure"}

    def _prepare(self) -> None:
        for reducer in self.reducers:
            reducer.before_step()
        optimizer, limit = self._optimizer(), self._settings.clip_norm
        if optimizer is None:
            return
        look_before_step(self._world, optimizer, [reducer.first_gradients for reducer in self.reducers])
        if limit is not None:
            # a fused optimizer under a gradient scaler gets gradients that it divides itself
            scale = getattr(optimizer, "grad_scale", None)
            clip(list(self._named.values()), limit if scale is None else limit * scale)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes inside only accumulate; the next one outside reduces them all."""
        self.reduce_alone()
        with contextlib.ExitStack() as stack:
            for reducer in self.reducers:
                stack.enter_context(reducer.no_sync())
            yield


def clip(parameters: list[torch.nn.Parameter], limit: float | torch.Tensor) -> None:
    """Scale gradients by min(1, limit / norm), with the 2-norm over all of them."""
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    values = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]
    if not values:
        return
    with torch.no_grad():
        norms = torch.stack([torch.linalg.vector_norm(value) for value in values])
        factor = (limit / torch.linalg.vector_norm(norms)).clamp(max=1.0)
        for grad in grads:
            grad.mul_(factor.to(grad.device))
