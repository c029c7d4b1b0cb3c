"""What a training step reads and changes on the host, where no recording sees it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

# what torch keeps in every module; parameters, buffers and layers are looked at by themselves
_OWN = set(vars(torch.nn.Module())) - {"training"}
_DEPTH = 3
_OPTIMIZERS_OWN = ("params", "lr", "warmup_updates")
_LIBRARIES = ("abc", "builtins", "hvdkit", "numpy", "torch", "torchvision", "typing")
_SCALARS = (bool, int, str, bytes, complex, type(None))
Reader = Callable[[], Any]


class HostState:
    """Reads what a recording takes for constant: numbers, flags, which tensors there are and where they lie.

    Args:
        model: Its layers and their attributes.
        optimizer: Its state and the options of its groups, but their learning rates.
        functions: The step, the loss or metrics: variables that they name, and attributes of objects.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, functions: Sequence[Any]) -> None:
        held = [function for function in functions if isinstance(function, torch.nn.Module)]
        modules = {id(each): (name, each) for name, each in model.named_modules()}
        modules |= {id(each): ("", each) for other in held for each in other.modules()}
        self._names: list[str] = []
        self._readers: list[Reader] = []
        for name, module in modules.values():
            self._add(f"layer {name or type(module).__name__!r}", _module_reader(module))
        code = {type(module) for _, module in modules.values()}
        for function in _reached([*functions, *code]):
            self._add(f"what {function.__qualname__} refers to", _function_reader(function))
        for entry in functions:
            if isinstance(entry, MethodType):
                if not isinstance(entry.__self__, torch.nn.Module):
                    self._add(f"what {entry.__qualname__} reads of its object", _method_reader(entry))
            elif not isinstance(entry, (torch.nn.Module, FunctionType)):
                self._add(type(entry).__name__, functools.partial(_plain, entry, _DEPTH))
        tensors = [*model.parameters(), *model.buffers()]
        self._add("where the weights lie", lambda: [tensor.data_ptr() for tensor in tensors])
        self._add("which weights are trained", lambda: [tensor.requires_grad for tensor in tensors])
        self._add("the optimizer", lambda: _optimizer(optimizer))

    def _add(self, name: str, reader: Reader) -> None:
        self._names.append(name)
        self._readers.append(reader)

    def read(self) -> list[Any]:
        """Return all of it, to be compared with what it was."""
        return [reader() for reader in self._readers]

    def differences(self, before: list[Any], now: list[Any]) -> str:
        """Return what has changed, in words; empty if nothing has."""
        return ", ".join(name for name, then, value in zip(self._names, before, now, strict=True) if then != value)


def random_places(device: torch.device) -> tuple[Any, ...]:
    """Return where generators stand that a recording of this device does not know: Python's, NumPy's and torch's."""
    _, keys, place, *_ = np.random.get_state()
    of_torch = b"" if device.type == "cpu" else bytes(torch.get_rng_state().numpy())
    return random.getstate(), np.asarray(keys).tobytes(), place, of_torch


def _optimizer(optimizer: torch.optim.Optimizer) -> Any:
    groups = [
        [(name, _plain(value, 1)) for name, value in group.items() if name not in _OPTIMIZERS_OWN]
        for group in optimizer.param_groups
    ]
    return id(optimizer.state), [len(group["params"]) for group in optimizer.param_groups], groups


def _module_reader(module: torch.nn.Module) -> Reader:
    held = vars(module)
    parts = [held["_parameters"], held["_buffers"], held["_modules"]]

    def tensors() -> list[list[int]]:
        return [list(map(id, part.values())) for part in parts]

    if type(module).__module__.startswith("torch."):
        names = [name for name, value in held.items() if name not in _OWN and isinstance(value, (*_SCALARS, float))]
        take = itemgetter(*names)
        return lambda: (take(held), tensors())
    classes = [vars(base) for base in type(module).__mro__ if not _is_a_librarys(base.__module__)]
    return lambda: (
        [(name, _plain(value, _DEPTH)) for name, value in held.items() if name not in _OWN],
        [(name, value) for each in classes for name, value in each.items() if isinstance(value, (*_SCALARS, float))],
        tensors(),
    )


def _function_reader(function: FunctionType) -> Reader:
    return lambda: [_plain(value, 1) for value in [*_named_by(function), function.__defaults__]]


def _method_reader(method: MethodType) -> Reader:
    """Return what reads those attributes of a method's object that it names, and those that its methods name."""
    held, kind = vars(method.__self__), type(method.__self__)
    waiting, names, seen = [method.__func__.__code__], set[str](), set[str]()
    while waiting:
        for name in waiting.pop().co_names:
            names.add(name)
            found = getattr(kind, name, None)
            if isinstance(found, FunctionType) and name not in seen:
                seen.add(name)
                waiting.append(found.__code__)
    return lambda: [_plain(held[name], 1) for name in sorted(names) if name in held]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty yet
        return None


def _reached(entries: Sequence[Any]) -> list[FunctionType]:
    """Return the user's own functions that can be reached from functions, methods, objects and classes."""
    found: dict[int, FunctionType] = {}
    waiting = list(entries)
    while waiting:
        for function in _functions_of(waiting.pop()):
            if id(function) in found or _is_a_librarys(function.__module__):
                continue
            found[id(function)] = function
            waiting += [value for value in _named_by(function) if isinstance(value, (FunctionType, MethodType))]
    return list(found.values())


def _functions_of(entry: Any) -> list[FunctionType]:
    if isinstance(entry, functools.partial):
        entry = entry.func
    if isinstance(entry, MethodType):
        entry = entry.__func__
    if isinstance(entry, FunctionType):
        return [entry]
    kind = entry if isinstance(entry, type) else type(entry)
    return [each for base in kind.__mro__ for each in vars(base).values() if isinstance(each, FunctionType)]


def _named_by(function: FunctionType) -> Iterator[Any]:
    """Yield what a function's variables hold, and what it names in modules of the user's."""
    outer, names = function.__globals__, function.__code__.co_names
    held = [*(_content(cell) for cell in function.__closure__ or ()), *(outer[name] for name in names if name in outer)]
    for value in held:
        yield value
        if isinstance(value, ModuleType) and not _is_a_librarys(value.__name__):
            yield from (vars(value)[name] for name in names if name in vars(value))


def _is_a_librarys(module: str | None) -> bool:
    return module is not None and module.split(".")[0] in _LIBRARIES


def _plain(value: Any, depth: int) -> Any:
    """Return what can be compared later: numbers and text as they are, other objects by what they hold."""
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, float):
        return value if value == value else "nan"
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value), len(value), [_plain(entry, depth - 1) for entry in value] if depth else None
    if isinstance(value, dict):
        return len(value), [(str(key), _plain(entry, depth - 1)) for key, entry in value.items()] if depth else None
    if depth and _is_a_users_object(value):
        return id(value), [(name, _plain(entry, depth - 1)) for name, entry in vars(value).items()]
    return id(value)


def _is_a_users_object(value: Any) -> bool:
    kinds = type, FunctionType, torch.nn.Module
    return hasattr(value, "__dict__") and not isinstance(value, kinds) and not _is_a_librarys(type(value).__module__)
