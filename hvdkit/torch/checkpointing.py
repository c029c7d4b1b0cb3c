"""Step 7: files that rank 0 alone writes and reads, and plain torch opens."""

from __future__ import annotations

import copy
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hvdkit.errors import CheckpointError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.files import Saved, write_atomically
from hvdkit.torch.synchronising import broadcast, synchronise_statistics
from hvdkit.torch.tensors import original
from hvdkit.training.rate_factor import take_rate_factor, with_rate_factor


@on_all_ranks
def save(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, **state: Any) -> None:
    """Step 7: write a checkpoint on rank 0; called by all ranks, which first average BatchNorm's statistics.

    ``torch.load(path, weights_only=True)`` gives ``{"model": ..., "optimizer": ..., "state": ...}`` anywhere.

    Args:
        path: Where; a temporary file is renamed to it when it is complete.
        model: Its ``state_dict`` is kept, under the same names whether it is compiled or not.
        optimizer: Its ``state_dict`` is kept.
        **state: Tensors, numbers, strings, lists and dicts; NumPy's numbers become Python's.

    Raises:
        CheckpointError: The file cannot be written, or holds something that :func:`restore` would not read; on every
            rank.
    """
    worlds.current().root_only(_writer(path, _content(model, optimizer, state)))


@on_all_ranks
def snapshot(
    path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, **state: Any
) -> Callable[[], None]:
    """Return what writes the file of :func:`save` later, from a copy of what there is now; called by all ranks.

    Only rank 0 has a copy, in host memory; elsewhere nothing is done.

    Raises:
        CheckpointError: When it is called: as by :func:`save`.
    """
    content = _content(model, optimizer, state)
    return _writer(path, _copied(content)) if worlds.current().is_root else _nothing


def _content(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, state: dict[str, Any]) -> dict[str, Any]:
    synchronise_statistics(model)
    plain = {name: _plain(value) for name, value in state.items()}
    return {
        "model": original(model).state_dict(),
        "optimizer": None if optimizer is None else optimizer.state_dict(),
        "state": with_rate_factor(worlds.current(), plain),
    }


def _copied(value: Any) -> Any:
    """Return a tree with tensors in host memory, which training does not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        # a state dict carries the versions of its layers as an attribute
        copied = copy.copy(value)
        copied.update((key, _copied(entry)) for key, entry in value.items())
        return copied
    if type(value) in (list, tuple):
        return type(value)(_copied(entry) for entry in value)
    return value


def _nothing() -> None:
    pass


def _writer(path: str, content: dict[str, Any]) -> Callable[[], None]:
    def write(file: Path) -> None:
        try:
            torch.save(content, file)
            # tensors are not read
            torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        except (pickle.PickleError, AttributeError, TypeError) as error:
            raise CheckpointError(f"checkpoint {path}: {_unreadable(content['state'], error)}") from error
        except RuntimeError as error:
            reason = _refusal(file) or " ".join(str(error).split())[:200]
            raise CheckpointError(f"cannot write {path}: {reason}") from error

    def write_file() -> None:
        write_atomically(path, write)

    return write_file


@on_all_ranks
def restore(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Step 7: read a checkpoint on rank 0 and give it to all ranks; called by all ranks.

    A learning rate that :func:`scale_lr` had scaled for another number of processes is scaled for this one.

    Returns:
        What was passed to :func:`save` as ``state``, on every rank.

    Raises:
        CheckpointError: The file is missing or damaged, or does not fit the model; on every rank.
    """
    state = take_saved(lambda: read_saved(path), model, optimizer)
    change = take_rate_factor(worlds.current(), state)
    for group in optimizer.param_groups if optimizer is not None and change != 1.0 else ():
        group.update({name: group[name] * change for name in ("lr", "initial_lr") if name in group})
    return state


def _refusal(file: Path) -> str | None:
    """Return why the disk takes no more, which torch's writer does not say."""
    try:
        with open(file, "ab") as more:
            more.write(b"\0" * (1 << 20))
            more.flush()
            os.fsync(more.fileno())
    except OSError as error:
        return error.strerror
    return None


def _plain(value: Any) -> Any:
    """Return NumPy's numbers as Python's, which plain torch opens."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(entry) for entry in value)
    return value


def _unreadable(state: dict[str, Any], error: Exception) -> str:
    for name, value in state.items():
        if not _is_readable(value):
            return (
                f"{name!r} is a {type(value).__name__}, which could not be read again; save tensors, numbers, strings, "
                "lists and dicts"
            )
    return f"it could not be read again: {' '.join(str(error).split())[:200]}"


def _is_readable(value: Any) -> bool:
    written = io.BytesIO()
    try:
        torch.save(value, written)
        torch.load(io.BytesIO(written.getvalue()), weights_only=True)
    except (pickle.PickleError, AttributeError, TypeError, RuntimeError):
        return False
    return True


def take_saved(
    read: Callable[[], Saved], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Give all ranks a checkpoint that ``read`` returns on rank 0; return its state; called by all ranks.

    Raises:
        CheckpointError: It cannot be read, or does not fit the model; on every rank.
    """

    def load() -> dict[str, Any]:
        saved = read()
        try:
            if optimizer is not None:
                if saved.content["optimizer"] is None:
                    raise CheckpointError(f"checkpoint {saved.path} holds no optimizer state")
                optimizer.load_state_dict(_as_here(saved.content["optimizer"], optimizer))
            original(model).load_state_dict(saved.content["model"])
        except (RuntimeError, ValueError, KeyError) as error:
            if isinstance(error, CheckpointError):
                raise
            said = " ".join(str(error).split())[:300]
            raise CheckpointError(f"checkpoint {saved.path} does not fit: {said}") from error
        return saved.state

    state: dict[str, Any] = worlds.current().root_only(load)
    broadcast(model, optimizer, root=0)
    return state


def _as_here(saved: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's saved state with what depends on the device as it is here."""
    groups = [
        {**group, **{name: own[name] for name in _OF_THE_DEVICE if name in own}}
        for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=False)
    ]
    return {**saved, "param_groups": [*groups, *saved["param_groups"][len(groups) :]]}


_OF_THE_DEVICE = ("capturable", "foreach", "fused")


def read_saved(path: str) -> Saved:
    """Read a checkpoint, on this rank alone.

    Raises:
        CheckpointError: The file is missing or damaged.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"checkpoint {path} does not exist")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise nearly anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"checkpoint {path} cannot be read: {reason}") from error
    if not isinstance(content, dict) or not {"model", "optimizer", "state"} <= set(content):
        raise CheckpointError(f"checkpoint {path} was not written by hvdkit.torch.save")
    return Saved(path, content, content["state"])
