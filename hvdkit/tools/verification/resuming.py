"""Runs that go on from checkpoints of the run that is verified, one after another in fresh processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.stopping import FALLING, parse_target
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.storage import CHECKPOINTS, Log, epoch_files, epoch_of

KEPT = 2
"""Files that a run that goes on may keep."""


@dataclass(frozen=True)
class Resumption:
    """One run that goes on.

    Attributes:
        name: Of its logs.
        words: From which file.
        update: The update behind which it goes on.
        folder: Where the files are that it may choose from; empty for ``file``.
        keeps: The names of the files that must be left in the folder at its end, where that is looked at.
        file: What it restores itself, saved inside an epoch.
        stop_at: Its target, for a run that must stop; None for one that must go to the end.
        epochs: After how many epochs it must be at its end.
    """

    name: str
    words: str
    update: int
    epochs: int
    folder: str = ""
    keeps: tuple[str, ...] = ()
    file: str = ""
    stop_at: Mapping[str, Any] | None = None


def inside_update(layout: Layout) -> int | None:
    """Return the update behind which a file is saved inside the second epoch; None if epochs have one update."""
    return 2 * layout.steps - 1 if layout.steps > 1 else None


def keeps_states(recipe: Recipe) -> bool:
    """Say whether there are metrics with a state of their own, which files saved inside an epoch do not hold."""
    return any(hasattr(entry, "update") or hasattr(entry, "update_state") for entry in recipe.metrics)


def plan_resumptions(folder: str, layout: Layout, stop_at: Mapping[str, Any] | None, root: Log) -> Iterator[Resumption]:
    """Lay out the files for each run that goes on, and yield what it is to do."""
    files = epoch_files(f"{folder}/{CHECKPOINTS}")
    # first, since its file is as large as all that is written next, and goes when it is done
    for inside in Path(folder, "ranks-0").glob("inside.*"):
        saved = root.facts["saved_inside"]
        yield Resumption("inside", "a file saved inside an epoch", saved, 3, file=str(inside))
    first = _folder(folder, "first", files[:1])
    yield Resumption("first", "the first epoch's file", layout.steps, 2, first)
    later = [path for path in files if epoch_of(path) < layout.epochs]
    if len(later) > 1:
        place = _folder(folder, "later", later)
        # what a process that was killed leaves behind
        Path(place, f".{files[-1].name}.tmp").write_bytes(files[-1].read_bytes()[:100])
        files[-1].unlink()
        words = f"the newest of {len(later)} files"
        newest = tuple(path.name for path in files[-KEPT:])
        yield Resumption("later", words, (layout.epochs - 1) * layout.steps, layout.epochs, place, newest)
    for number, (target, due) in enumerate(targets(stop_at or {}, root.facts["epochs"])):
        place = _folder(folder, f"stop-{number}", files[:1])
        words = f"stop_at {target} after epoch {due}"
        yield Resumption(f"stop-{number}", words, layout.steps, due, place, stop_at=target)


def _folder(folder: str, name: str, files: list[Path]) -> str:
    place = Path(folder, f"resume-{name}")
    place.mkdir()
    for path in files:
        # they are replaced or removed, not written to
        try:
            os.link(path, place / path.name)
        except OSError:
            shutil.copy(path, place)
    return str(place)


def resumed_updates(layout: Layout) -> int:
    """Return the updates of all runs that go on, each to the end of an epoch."""
    inside = inside_update(layout)
    return 2 * layout.steps + (0 if inside is None else 3 * layout.steps - inside)


def targets(stop_at: Mapping[str, Any], records: list[dict[str, float]]) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield targets that epochs reach, and one that none does, each with the epoch after which a run must end."""
    for name, target in stop_at.items():
        direction, _ = parse_target(name, target)
        values = [record.get(f"val_{name}", record.get(name, float("nan"))) for record in records]
        sign = -1.0 if direction == FALLING else 1.0
        heights = [sign * value for value in values]
        better = [epoch for epoch in range(1, len(values)) if heights[epoch] > max(heights[:epoch])]
        if better:
            halfway = (heights[better[0]] + max(heights[: better[0]])) / 2
            yield {name: (direction, sign * halfway)}, better[0] + 1
            continue
        yield {name: (direction, values[0])}, 1
        never = sign * (max(heights) + 1.0)
        if name != "accuracy":
            yield {name: (direction, never)}, len(values)
        elif values[0] < 1.0:
            yield {name: (direction, 1.0)}, len(values)
