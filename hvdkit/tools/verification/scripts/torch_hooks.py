"""What is noted in torch: steps of optimizers, gradients before and after their reduction, random numbers."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hvdkit.tools.verification.rounding import UNITS
from hvdkit.tools.verification.scripts.job import DOUBLED, NUDGED, PLAIN, RANKS, SINGLE
from hvdkit.tools.verification.scripts.loops import follow, replay
from hvdkit.tools.verification.scripts.recording import Enough, Recorder
from hvdkit.tools.verification.scripts.scratch import Scratch
from hvdkit.tools.verification.scripts.torch_gradients import Gradients
from hvdkit.tools.verification.storage import State


class TorchHooks:
    """Watches torch in the process of the script."""

    def __init__(self, recorder: Recorder, scratch: Scratch, seed: int) -> None:
        self._recorder, self._scratch = recorder, scratch
        torch.manual_seed(seed)
        self._models: list[torch.nn.Module] = []
        self._names: dict[int, str] = {}
        self._optimizers: list[torch.optim.Optimizer] = []
        self._rates: list[float] = []
        self._steps: dict[int, int] = {}
        self._broadcast: set[int] = set()
        self._gradients = Gradients(recorder, self._name)
        self._nudges = torch.Generator().manual_seed(seed)

    def install(self) -> None:
        """Watch all optimizers, backward passes and modules."""
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        register_module_forward_pre_hook(self._before_forward)
        self._gradients.install()
        real = torch.save

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            self._scratch.let_go(f)
            return real(obj, f, *args, **kwargs)

        torch.save = save

    def shard(self, batches: Any, number: int) -> None:
        """Follow the batches of training."""
        if self._recorder.run in (RANKS, PLAIN):
            follow(batches, number, self._recorder, self._new_batch)
        else:
            replay(batches, number, self._recorder, join, self._new_batch)

    def distribute(self, optimizer: Any, model: Any, options: dict[str, Any]) -> None:
        """Follow the gradients of an optimizer."""
        self._learn(model)
        if isinstance(optimizer, torch.optim.Optimizer):
            self._note_distributed(optimizer)
            self._gradients.follow(optimizer, options)
        if options.get("sync_batchnorm"):
            self._recorder.log.facts["synchronised"] = True

    def broadcast(self, model: Any, root: int) -> None:
        """Give other ranks other weights and statistics than the root's, for the broadcast to mend."""
        self._learn(model)
        if not isinstance(model, torch.nn.Module):
            return
        self._broadcast |= {id(parameter) for parameter in model.parameters()}
        if self._recorder.on_ranks and self._recorder.rank != root:
            with torch.no_grad():
                for value in [*model.parameters(), *model.buffers()]:
                    if value.is_floating_point() and not torch.nn.parameter.is_lazy(value):
                        value.add_(0.1 * self._recorder.rank)

    def _note_distributed(self, optimizer: torch.optim.Optimizer) -> None:
        held = self._recorder.log.facts.setdefault("distributed", [])
        held.append(self._number(optimizer))

    def _learn(self, model: Any) -> None:
        """Take the names of a model's parameters."""
        if not isinstance(model, torch.nn.Module) or any(model is other for other in self._models):
            return
        prefix = f"{len(self._models)}." if self._models else ""
        self._models.append(model)
        for name, parameter in model.named_parameters():
            self._names.setdefault(id(parameter), prefix + name)

    def _name(self, parameter: torch.Tensor) -> str:
        if id(parameter) not in self._names:
            for place, optimizer in enumerate(self._optimizers):
                for number, held in enumerate(_parameters(optimizer)):
                    self._names.setdefault(id(held), f"parameter {number} of optimizer {place}")
        return self._names[id(parameter)]

    def _number(self, optimizer: torch.optim.Optimizer) -> int:
        for number, other in enumerate(self._optimizers):
            if other is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1

    def _before_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        number = self._number(optimizer)
        self._recorder.drawn(random_state())
        if number in self._steps:
            return
        self._steps[number] = 0
        parameters = _parameters(optimizer)
        if self._recorder.on_ranks and not {id(parameter) for parameter in parameters} <= self._broadcast:
            self._recorder.log.facts.setdefault("not broadcast", []).append(number)
        self._recorder.start(number, type(optimizer).__name__, self._groups(optimizer), self._state(optimizer))
        # after those of a warm-up, which changes rates for the time of a step
        optimizer.register_step_pre_hook(self._take_rates)

    def _take_rates(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self._rates = self._groups(optimizer)
        self._gradients.stepped(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        number = self._number(optimizer)
        if self._recorder.keeps:
            self._recorder.update(number, type(optimizer).__name__, self._rates, self._state(optimizer))
        self._steps[number] = self._steps.get(number, 0) + 1
        if self._recorder.run in (SINGLE, DOUBLED):
            raise Enough
        self._recorder.check_end(self._steps[number])

    def _before_forward(self, module: torch.nn.Module, _inputs: Any) -> None:
        if not module.training:
            return
        kind, settings, facts = type(module).__name__, vars(module), self._recorder.log.facts
        for name in ("p", "dropout"):
            if isinstance(settings.get(name), (int, float)) and settings[name] and (name != "p" or "Dropout" in kind):
                setattr(module, name, 0.0)
                facts["dropout"] = True
        if "BatchNorm" in kind or ("InstanceNorm" in kind and settings["track_running_stats"]):
            facts["statistics"] = True

    def _new_batch(self) -> str:
        """Return the random state when a batch comes; move the weights in the last place where that is asked for."""
        if self._recorder.run == NUDGED:
            with torch.no_grad():
                for optimizer in self._optimizers:
                    for parameter in _parameters(optimizer):
                        self._nudge(parameter)
        return random_state()

    def _nudge(self, tensor: torch.Tensor) -> None:
        units = torch.randint(-UNITS, UNITS + 1, tensor.shape, generator=self._nudges).to(tensor.device)
        with torch.no_grad():
            tensor.mul_(1 + units * torch.finfo(tensor.dtype).eps)

    def _state(self, optimizer: torch.optim.Optimizer) -> State:
        parameters, slots = {}, {}
        for parameter in _parameters(optimizer):
            name = self._name(parameter)
            parameters[name] = _array(parameter)
            for slot, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, (torch.Tensor, float)):
                    slots[f"{slot} of {name}"] = _array(torch.as_tensor(value))
        return {"parameters": parameters, "slots": slots}

    def _groups(self, optimizer: torch.optim.Optimizer) -> list[float]:
        return [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]


def join(parts: list[Any]) -> Any:
    """Return batches one behind the other."""
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    if isinstance(parts[0], (list, tuple)):
        return type(parts[0])(entry for part in parts for entry in part)
    raise TypeError(f"a {type(parts[0]).__name__} cannot be joined")


def random_state() -> str:
    """Return a digest of all random generators."""
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    found.update(repr(random.getstate()).encode())
    found.update(repr(np.random.get_state(legacy=False)).encode())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found.update(torch.cuda.get_rng_state().numpy().tobytes())
    return found.hexdigest()


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    value = tensor.detach().cpu()
    array: NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    return array


def make_hooks(recorder: Recorder, scratch: Scratch, seed: int) -> TorchHooks:
    """Return what watches torch."""
    return TorchHooks(recorder, scratch, seed)
