"""Private names of frameworks and of Horovod that hvdkit leans on are there, and stand in one table."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from installed import needs
from private_names import TABLE, PrivateName
from private_uses import ROOT, foreign_names, used_names
from ranks import on

KERAS_ON = ("tensorflow", "torch", "jax")


def applies(library):
    """Say whether the installed Keras is one that a library's text means, such as ``keras 2`` or ``keras 3.16``."""
    name, _, rest = library.partition(" ")
    if name != "keras" or not rest or installed_keras() is None:
        return True
    least = [int(part) for part in rest.split()[0].split(".")]
    return installed_keras()[0] == least[0] and installed_keras() >= least


def installed_keras():
    """Return Keras's version, [3, 15], or None."""
    try:
        return [int(part) for part in version("keras").split(".")[:2]]
    except PackageNotFoundError:
        return None


def combinations(library):
    """Return the ranks on which a library's names are looked for."""
    name, *rest = library.split()
    if name == "horovod":
        return on(rest[0], ("horovod",))
    if name == "torchmetrics":
        here = on("torch", ("serial",), (1,))
        return [pytest.param(*entry.values, marks=[*entry.marks, needs(name)], id=entry.id) for entry in here]
    if name != "keras":
        return on(name, ("serial",), (1,))
    backends = rest[1:] or [name for name in KERAS_ON if importlib.util.find_spec(name)]
    if installed_keras() is None or installed_keras()[0] == 2 or not backends:
        return on("keras", ("serial",), (1,))
    return [entry for name in backends for entry in on("keras", ("serial",), (1,), env={"KERAS_BACKEND": name})]


def applicable():
    """Return the table's rows, each with its ranks, without those for a Keras that is not the installed one."""
    return [
        pytest.param(*entry.values, row, marks=entry.marks, id=f"{entry.id} {row}")
        for row in TABLE
        if applies(row.library)
        for entry in combinations(row.library)
    ]


def missing(row):
    """Say what is wrong with a name; empty if nothing is. Runs on a rank."""
    start, _, name = row.name.rpartition(":")
    if row.kind == "text":
        found = name.encode() in Path(importlib.util.find_spec(start).origin).read_bytes()
    elif row.kind == "extension":
        found = importlib.util.find_spec(row.name)
    elif row.kind == "hook":
        found = specimens().called_in_update(name)
    elif row.kind == "class":
        found = name in type(specimens().make(start)).__name__
    elif row.kind == "path":
        found = any(variable.path.endswith(name) for variable in specimens().make(start).variables)
    else:
        found = is_of_kind(row.kind, resolved(start, name))
    return "" if found else f"it is not there as {row.kind!r}"


def specimens():
    return importlib.import_module("specimens")


def resolved(start, name):
    """Follow a dotted name from a specimen, or from the longest part of it that is a module."""
    names = name.split(".")
    if start:
        held = specimens().make(start)
    else:
        held, names = importlib.import_module(names[0]), names[1:]
    for position, part in enumerate(names):
        if not start and not hasattr(held, part):
            held = importlib.import_module(".".join(name.split(".")[: position + 2]))
        else:
            held = getattr(held, part)
    return held


def is_of_kind(kind, value):
    return {"callable": callable(value), "variable": hasattr(value, "assign"), "value": True}[kind]


@pytest.mark.parametrize(("ranks", "row"), applicable(), indirect=["ranks"])
def test_a_private_name_is_there(ranks, row):
    def body():
        try:
            return missing(row)
        except (AttributeError, ImportError) as error:
            return str(error)

    for problem in ranks.run(body):
        assert problem == "", f"{row.file} leans on {row.name} of {row.library} to {row.purpose}, but {problem}"


def test_every_foreign_private_name_of_hvdkit_is_in_the_table():
    unknown = {(file, name) for file, name in foreign_names() if not any(covers(row, file, name) for row in TABLE)}
    assert unknown == set(), "put them into private_names.py with a test, or use a public name"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("optimizer._clip_gradients(gradients)", "_clip_gradients"),
        ("getattr(model, '_loss_tracker', None)", "_loss_tracker"),
        ("self._optimizer._rate", "_rate"),
        ("self._not_ours", "_not_ours"),
        ("keras.src.layers", "src"),
        ("import keras.src.layers", "keras.src.layers"),
        ("from keras.src import layers", "keras.src.layers"),
        ("from torch import _dynamo", "torch._dynamo"),
        ("import_module('tensorflow.python.eager')", "tensorflow.python.eager"),
    ],
)
def test_the_search_finds_every_way_to_use_a_private_name(line, name):
    assert set(used_names(ast.parse(line), own=set())) - {"_optimizer"} == {name}


def test_the_search_leaves_hvdkits_own_names_alone():
    lines = [
        "from hvdkit._plan import cut",
        "self._own + cls._own + super()._own",
        "(f'{name}_bn1', '__name__', x.__dict__)",
    ]
    assert list(used_names(ast.parse("\n".join(lines)), own={"_own"})) == []


def covers(row: PrivateName, file: str, name: str) -> bool:
    return row.file == file and f".{name}." in f".{row.name.replace(':', '.')}."


def test_every_row_is_used_by_its_file():
    assert [str(row) for row in TABLE if private_part(row) not in (ROOT / row.file).read_text()] == []


def private_part(row: PrivateName) -> str:
    """Return what hvdkit's source has of a row's name; it puts ``_async`` behind the names of operations."""
    parts = row.name.replace(":", ".").split(".")
    return next((part for part in parts if part.startswith("_")), parts[-1].removesuffix("_async"))
