"""Randomness in torch: generators, their places, and how it is switched off."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.overrides import TorchFunctionMode

from hvdkit.job import random_streams
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, KEPT, NONE, REPLAYED
from hvdkit.tools.verification.storage import Draws
from hvdkit.torch.random_state import generators_of

_F = torch.nn.functional
_DROPOUTS = {
    getattr(_F, name): getattr(_F, name)
    for name in (
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "alpha_dropout",
        "feature_alpha_dropout",
    )
} | {torch.dropout: torch.dropout, torch.alpha_dropout: torch.alpha_dropout}


def read_draws(model: Any) -> Draws:
    """Return where the generators of Python, NumPy, torch and the model stand."""
    found = {"python and numpy": random_streams.read(), "torch": torch.get_rng_state().numpy().copy()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state().numpy().copy()
    return found | {f"generator {name}": kept.get_state().numpy().copy() for name, kept in generators_of(model)}


def write_draws(model: Any, draws: Draws) -> None:
    """Let the generators go on from where they stood."""
    random_streams.write(draws["python and numpy"])
    torch.set_rng_state(torch.from_numpy(draws["torch"]))
    if "cuda" in draws:
        torch.cuda.set_rng_state(torch.from_numpy(draws["cuda"]))
    for name, generator in generators_of(model):
        generator.set_state(torch.from_numpy(draws[f"generator {name}"]))


@contextmanager
def generators_at(seed: int) -> Iterator[None]:
    """Let the generators start at a seed inside, and go on afterwards as if nothing had been drawn."""
    with random_streams.one_random_state(seed), torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


class _WithoutDropout(TorchFunctionMode):  # type: ignore[misc]
    """Makes torch's dropout functions return their input."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if func is _F.scaled_dot_product_attention:
            args, kwargs = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args, {**kwargs}
            kwargs.pop("dropout_p", None)
        return func(*args, **kwargs)


def switch_off(model: Any, *, functions: bool) -> None:
    """Switch dropout off in layers, and on demand in functions that are called inside of the model."""
    for module in model.modules():
        if "Dropout" in type(module).__name__ and hasattr(module, "p"):
            module.p = 0.0
        if isinstance(module, (torch.nn.RNNBase, torch.nn.MultiheadAttention)):
            module.dropout = 0.0
    if not functions:
        return
    without = _WithoutDropout()

    def begin(*_: Any) -> None:
        without.__enter__()

    def end(*_: Any) -> None:
        without.__exit__(None, None, None)

    model.register_forward_pre_hook(begin)
    model.register_forward_hook(end, always_call=True)


def kind_of(model: Any, loss: Any, batch: Any, *, compiled: bool) -> str:
    """Return the kind of randomness in a training pass; dropout is off afterwards."""

    def run() -> list[NDArray[Any]]:
        outputs = model(batch[0])
        return [
            np.asarray(leaf.detach().cpu()) for tree in (outputs, loss(outputs, batch[1])) for leaf in _tensors(tree)
        ]

    model.train()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def same(first: list[NDArray[Any]], second: list[NDArray[Any]]) -> bool:
        return len(first) == len(second) and all(
            np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
            for left, right in zip(first, second, strict=True)
        )

    def twice(between: Callable[[], None]) -> bool:
        """Say whether two passes give the same."""
        results = []
        for _ in range(2):
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
                results.append(run())
            between()
        return same(*results)

    draws = read_draws(model)
    if twice(lambda: None) and _same_place(draws, read_draws(model)):
        return NONE
    write_draws(model, draws)
    repeats = twice(lambda: write_draws(model, draws)) and not compiled
    switch_off(model, functions=not compiled)
    draws = read_draws(model)
    quiet = twice(lambda: None) and _same_place(draws, read_draws(model))
    if repeats:
        return REPLAYED if quiet else KEPT
    return FROZEN if quiet else HIDDEN


def _same_place(draws: Draws, now: Draws) -> bool:
    return all(pickle.dumps(draws[name]) == pickle.dumps(now[name]) for name in draws)


def _tensors(tree: Any) -> Iterator[Any]:
    return (leaf for leaf in leaves(map_tree(lambda part: part, tree)) if isinstance(leaf, torch.Tensor))
