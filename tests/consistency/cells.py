"""The matrix: which framework, engine and number of processes a test runs on; see README.md for how to choose."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable
from fnmatch import fnmatch
from typing import Any

import pytest
from ranks import UNDER_KERAS_2, Combination, on, unavailable

FRAMEWORKS = ("torch", "tf", "keras")
EVERY_TIME = (("serial", 1), ("horovod", 3), ("torch", 2), ("mpi", 3))
ALSO = (("horovod", 1), ("horovod", 2), ("torch", 1), ("torch", 3), ("mpi", 1), ("mpi", 2))
ELSEWHERE = ({"KERAS_BACKEND": "torch"}, {"KERAS_BACKEND": "jax"})


def matrix(names: Iterable[str], few: Iterable[str]) -> list[Any]:
    """Return every cell with every name.

    Slow are the cells outside of the short list, and where each name costs a compilation all but a few names, save on
    three processes over MPI.
    """
    found = []
    for cells, rest in ((EVERY_TIME, False), (ALSO, True)):
        for entry in _cells(cells):
            combination = entry.values[0]
            all_names = combination.framework == "torch" or (
                (combination.engine, combination.size) == ("mpi", 3) and not combination.env
            )
            for name in names:
                slow = [] if not rest and (all_names or name in few) else [pytest.mark.slow]
                cell = marked(entry, *slow)
                found.append(pytest.param(combination, name, marks=cell.marks, id=f"{cell.id}-{name}"))
    return found


def pairs(frameworks: Iterable[str] = FRAMEWORKS) -> list[Any]:
    """Return two processes of each framework; each begins with another engine, and the first that is here is quick."""
    keras = ("horovod", "mpi") if UNDER_KERAS_2 else ("mpi", "horovod")
    engines = {"torch": ("torch", "horovod", "mpi"), "tf": ("horovod", "mpi"), "keras": keras}
    found = []
    for framework in frameworks:
        entries = [marked(entry) for entry in on(framework, engines[framework])]
        here = [entry for entry in entries if not unavailable(entry.values[0])]
        found += [entry if entry in here[:1] else marked(entry, pytest.mark.slow) for entry in entries]
    return found


def every_kind() -> list[Any]:
    """Return two processes of each framework, and of Keras on torch and JAX."""
    elsewhere = zip(("torch", "mpi"), ELSEWHERE, strict=True)
    return [*pairs(), *(marked(entry) for engine, env in elsewhere for entry in on("keras", (engine,), env=env))]


def alone(frameworks: Iterable[str] = FRAMEWORKS) -> list[Any]:
    """Return one process without an engine for each framework."""
    return [marked(entry) for name in frameworks for entry in on(name, ("serial",), (1,))]


def slow(entries: Iterable[Any]) -> list[Any]:
    """Return parameters as slow ones."""
    return [marked(entry, pytest.mark.slow) for entry in entries]


def _cells(cells: Iterable[tuple[str, int]]) -> list[Any]:
    found = []
    for engine, size in cells:
        for framework in FRAMEWORKS:
            if engine != "torch" or framework == "torch":
                found += on(framework, (engine,), (size,))
        for env in ELSEWHERE:
            if _runs(env["KERAS_BACKEND"], engine, size):
                found += on("keras", (engine,), (size,), env=env)
    return found


def _runs(library: str, engine: str, size: int) -> bool:
    """Say whether Keras on another library than TensorFlow is in the matrix here; JAX has one engine."""
    if library == "jax":
        return engine in ("serial", "mpi")
    return (engine, size) in (("serial", 1), ("torch", 2), ("horovod", 3))


def marked(entry: Any, *marks: Any) -> Any:
    """Return a parameter with more marks, skipped if ``HVDKIT_CONSISTENCY`` leaves it out."""
    combination = entry.values[0]
    wanted = os.environ.get("HVDKIT_CONSISTENCY", "*").split(",")
    if not any(fnmatch(_name(combination), pattern) for pattern in wanted):
        marks = (*marks, pytest.mark.skip(reason=f"HVDKIT_CONSISTENCY leaves out {_name(combination)}"))
    return pytest.param(combination, marks=[*entry.marks, *marks], id=entry.id)


def _name(combination: Combination) -> str:
    """Return a cell as the variable names it, such as ``keras3:mpi:2``."""
    framework = combination.framework
    if framework == "keras":
        try:
            framework += importlib.metadata.version("keras").split(".")[0]
        except importlib.metadata.PackageNotFoundError:
            framework += "3"
    return f"{framework}:{combination.engine}:{combination.size}"
