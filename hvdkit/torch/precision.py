"""Mixed precision in the one right order: reduce, unscale, common finite check, clip, step, update."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hvdkit.errors import RecipeError
from hvdkit.torch.distribution import synchronize

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def computing_in(precision: str) -> AbstractContextManager[None]:
    """Leave a model as it is built: the training step casts."""
    del precision
    return nullcontext()


class Precision:
    """Autocast around the model and its loss, and for fp16 a gradient scaler around backward and update.

    Gradients are reduced before anything looks at them, so an infinity on one rank makes all ranks skip the update.

    Args:
        name: ``fp32``, ``bf16`` or ``fp16``; parameters stay as they are.
        device: Where the model is.
        optimizer: Distributed or not.
        distributed: Whether it is.

    Raises:
        RecipeError: This torch has no gradient scaler for all devices.
    """

    def __init__(self, name: str, device: str, optimizer: torch.optim.Optimizer, distributed: bool) -> None:
        self._type = _TYPES.get(name)
        self._device = torch.device(device).type
        self._optimizer, self._distributed = optimizer, distributed
        self._scaler: Any = None
        # counted where the gradients are, so that no host waits for a GPU
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        if name == "fp16":
            if not hasattr(torch.amp, "GradScaler"):
                raise RecipeError(f"precision='fp16' needs torch 2.3 or newer, this is {torch.__version__}; use 'bf16'")
            self._scaler = torch.amp.GradScaler(self._device)

    @property
    def is_scaled(self) -> bool:
        """Whether a scaler may skip updates."""
        return self._scaler is not None

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which the model and its loss are computed."""
        return nullcontext() if self._type is None else torch.autocast(self._device, self._type)

    def backward(self, loss: torch.Tensor) -> None:
        """Do the backward pass, scaled if gradients are small for their type."""
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def step(self) -> None:
        """Update the weights, unless a gradient of any rank is not finite in fp16."""
        if self._scaler is None:
            self._optimizer.step()
            return
        if self._distributed:
            synchronize(self._optimizer)
        before = self._scaler._scale.clone()
        try:
            self._scaler.unscale_(self._optimizer)
            # clipping is hooked on the optimizer's own step
            self._scaler.step(self._optimizer)
            self._scaler.update()
        except BaseException:
            # of an update that could not be recorded the scaler knows nothing
            self._scaler._per_optimizer_states.clear()
            raise
        self._skipped += self._scaler._scale < before

    def take_skipped(self) -> dict[str, int]:
        """Return how many updates were skipped since the last call, nothing where none can be."""
        if self._scaler is None:
            return {}
        skipped = int(self._skipped)
        self._skipped.zero_()
        return {"skipped_steps": skipped}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {} if self._scaler is None else {"scaler": self._scaler.state_dict()}

    def take_state(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; one that was written in another precision tells nothing."""
        if self._scaler is not None and "scaler" in state:
            self._scaler.load_state_dict(state["scaler"])
