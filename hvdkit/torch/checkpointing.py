"""Step 7: files that rank 0 alone writes and reads, and plain torch opens."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch

from hvdkit.errors import CheckpointError
from hvdkit.job import world as worlds
from hvdkit.job.files import write_atomically
from hvdkit.torch.synchronising import average_buffers, broadcast


def save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, **state: Any) -> None:
    """Step 7: write a checkpoint on rank 0; called by all ranks, which first average BatchNorm's statistics.

    ``torch.load(path, weights_only=True)`` gives ``{"model": ..., "optimizer": ..., "state": ...}`` anywhere.

    Args:
        path: Where; a temporary file is renamed to it when it is complete.
        model: Its ``state_dict`` is kept.
        optimizer: Its ``state_dict`` is kept.
        **state: Tensors, numbers, strings, lists and dicts.

    Raises:
        CheckpointError: The file cannot be written; on every rank.
    """
    average_buffers(model)
    content = {
        "model": model.state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "state": state,
    }
    worlds.current().root_only(lambda: write_atomically(path, lambda file: torch.save(content, file)))


def restore(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Step 7: read a checkpoint on rank 0 and give it to all ranks; called by all ranks.

    Returns:
        What was passed to :func:`save` as ``state``, on every rank.

    Raises:
        CheckpointError: The file is missing or damaged, or does not fit the model; on every rank.
    """
    world = worlds.current()

    def load() -> dict[str, Any]:
        content = _read(path)
        try:
            if optimizer is not None:
                if content["optimizer"] is None:
                    raise CheckpointError(f"checkpoint {path} holds no optimizer state")
                optimizer.load_state_dict(content["optimizer"])
            model.load_state_dict(content["model"])
        except (RuntimeError, ValueError, KeyError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"checkpoint {path} does not fit: {' '.join(str(error).split())[:300]}") from error
        state: dict[str, Any] = content["state"]
        return state

    result: dict[str, Any] = world.root_only(load)
    broadcast(model, optimizer, root=0)
    return result


def read_state(path: str) -> dict[str, Any]:
    """Return what stands in a checkpoint beside model and optimizer.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    state: dict[str, Any] = _read(path)["state"]
    return state


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(content, dict) or not {"model", "optimizer", "state"} <= set(content):
        raise CheckpointError(f"checkpoint {path} was not written by hvdkit.torch.save")
    return content
