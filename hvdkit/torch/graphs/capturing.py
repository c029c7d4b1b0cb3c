"""A step of a loop of one's own as CUDA graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from hvdkit.errors import RecipeError
from hvdkit.torch.copies import Copies
from hvdkit.torch.graphs.obstacles import obstacle
from hvdkit.torch.graphs.recorder import recorder_for
from hvdkit.torch.graphs.recordings import Recordings, say_why_not
from hvdkit.torch.rates import step_on_device
from hvdkit.torch.tensors import device_of
from hvdkit.training.batches import current_batch_counts
from hvdkit.training.loop_weight import LOOP_WEIGHT

Step = Callable[..., Any]


def capture(step: Step, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> Step:
    """Return a training step that runs as one CUDA graph for each shape of batch, with the same results.

    The first three calls for a shape run as they are; the next one is recorded and, like all after it, replayed
    without Python: what a step prints comes from the first four calls only. A step that cannot be recorded, since it
    waits for the GPU or changes numbers on the host, goes on as it is, and one line says why. Learning rates may change
    between calls. Without a GPU the step comes back as it is.

    Args:
        step: Takes tensors, trees of them, and plain values; does forward pass, backward pass and ``optimizer.step()``;
            returns tensors, or trees of them.
        optimizer: That of the step; call ``distribute`` first.
        model: That of the step.

    Returns:
        The step; tensors in host memory are brought to the model's device first, and its results are the caller's own.

    Raises:
        RecipeError: The optimizer is none of torch's.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise RecipeError(f"capture needs a torch optimizer, it got {type(optimizer).__name__}")
    device = device_of(model)
    recorder = recorder_for(device)
    if recorder is None:
        return step
    step_on_device(optimizer, model)
    reason = obstacle(model, optimizer, scaled=False)
    if reason:
        say_why_not(reason)
        return step
    recordings = Recordings(recorder, model, optimizer, [step])
    copies = Copies(device)

    @functools.wraps(step)
    def captured(*args: Any, **kwargs: Any) -> Any:
        given = _each_tensor(copies.bring, (args, kwargs))

        def work(held: list[torch.Tensor]) -> Any:
            rest = iter(held)
            filled, named = _each_tensor(lambda _: next(rest), given)
            return _each_tensor(torch.Tensor.detach, step(*filled, **named))

        tensors: list[torch.Tensor] = []
        others = repr(_each_tensor(lambda tensor: tensors.append(tensor), given))
        # a rank that repeats a sample tells reductions so by the batch that it is at
        if not current_batch_counts():
            return work(tensors)
        result = recordings.run((others, LOOP_WEIGHT.now, model.training), tensors, work)
        return _each_tensor(torch.Tensor.clone, result)

    return captured


def _each_tensor(function: Callable[[torch.Tensor], Any], tree: Any) -> Any:
    """Return a tree of tuples, lists and dicts with the function's result in place of each tensor."""
    if isinstance(tree, torch.Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _each_tensor(function, part) for name, part in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_each_tensor(function, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree
