"""Why an update cannot be recorded, as far as that is known before the first one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hvdkit.torch.distribution import reducers_of
from hvdkit.torch.rates import takes_rate_tensors

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def obstacle(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, scaled: bool) -> str:
    """Return what keeps updates of this optimizer from being recorded; empty if nothing is known.

    Args:
        model: What is trained.
        optimizer: What trains it.
        scaled: Whether a gradient scaler may skip its updates.
    """
    if not all(reducer.recordable for reducer in reducers_of(optimizer)):
        return "this engine reduces gradients outside of the GPU's work; use engine torch"
    if not takes_rate_tensors(optimizer):
        hint = "; give it fused=True" if isinstance(optimizer, torch.optim.SGD) else ""
        return f"{type(optimizer).__name__} takes its learning rate or counts its updates on the host{hint}"
    if scaled and not all(group.get("fused") for group in optimizer.param_groups):
        return f"under fp16 {type(optimizer).__name__} waits for the scaler; give it fused=True"
    hooks = sorted({_place(hook) for hook in _hooks(model, optimizer) if not _is_known(hook)})
    return f"hooks run in Python: {', '.join(hooks)}" if hooks else ""


def _hooks(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for module in model.modules():
        for name in _HOOKS:
            yield from getattr(module, name).values()
    for name in _OPTIMIZER_HOOKS:
        yield from getattr(optimizer, name).values()


def _is_known(hook: Any) -> bool:
    module = getattr(hook, "__module__", None) or type(hook).__module__
    return module.split(".")[0] in ("torch", "hvdkit")


def _place(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))
