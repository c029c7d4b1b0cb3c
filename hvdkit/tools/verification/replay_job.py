"""What runs in the process that computes what N processes should have."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.given import identity, note_given, note_read
from hvdkit.tools.verification.jobs import Job, begin, prepared, stand_back
from hvdkit.tools.verification.layout import is_neutral, load_data
from hvdkit.tools.verification.randomness import KEPT, REPLAYED
from hvdkit.tools.verification.reference import Reference
from hvdkit.tools.verification.reference import whole as joined_batches
from hvdkit.tools.verification.rounding import Rounding
from hvdkit.tools.verification.storage import Log, Micro, State, digests

_PROBES = 4
_UNJOINED = "the ranks' batches differ in shape and make no global batch"


def replay(job: Job, threads: int, made: dict[str, int]) -> None:
    """Train the reference on the batches that the ranks have seen, for so many updates in each named run."""
    if "twin" not in made:
        stand_back()
    view, recipe = begin(job)
    view.set_threads(threads)
    recipe = prepared(recipe, job, view, None)
    assert job.layout is not None
    data, ranks = recipe.data(), [Log.load(f"{job.folder}/ranks-{rank}") for rank in range(job.layout.size)]
    logs = {name: Log(f"{job.folder}/{name}") for name in made}
    for name, log in logs.items():
        _replay(job, view, recipe, log, ranks, data.validation, made[name])
        log.save()
    if "twin" in logs:
        _note_data(job, view, recipe, logs["twin"], ranks, data)


def _note_data(job: Job, view: View, recipe: Recipe, twin: Log, ranks: list[Log], data: Data) -> None:
    """Note what one process is given; at the end, since random generators are seeded anew for it."""
    twin.facts["data"] = identity(view, data)
    for part, taken in (("train", "micros"), ("validation", "evaluated")):
        batches = [getattr(rank, taken) for rank in ranks]
        note_given(view, twin, part, getattr(data, part), batches, recipe)
    assert job.layout is not None
    for part in ("train", "validation"):
        anew = functools.partial(_made_anew, job, view, part)
        note_read(view, twin, part, getattr(data, part), anew, recipe, job.layout)
    twin.save()


def _made_anew(job: Job, view: View, part: str, whole: bool = False) -> Any:
    recipe = job.source.load()
    data = load_data(recipe, job.framework) if whole else prepared(recipe, job, view, None).data()
    return getattr(data, part)


def _replay(job: Job, view: View, recipe: Recipe, log: Log, ranks: list[Log], validation: Any, number: int) -> None:
    """Do the first updates, and note the metrics of each epoch."""
    layout = job.layout
    assert layout is not None
    reference = view.reference(recipe)
    name = Path(log.folder).name
    if job.randomness == REPLAYED and name in ("quiet", "whole"):
        view.freeze(reference.model)
    if name == "rounded":
        reference.rounding = Rounding(recipe.seed)
    synchronised = recipe.distribute is not None and recipe.distribute.sync_batchnorm
    # synchronised statistics are those of the global batch, which single batches do not give
    updates = [_parts(ranks, update + 1) for update in range(min(rank.facts["updates"] for rank in ranks))]
    joined = name == "whole" and all(map(_can_be_joined, updates))
    whole = joined or synchronised
    first = ranks[0].micros[0].load()
    reference.prime(first.inputs, first.targets)
    log.facts |= {"fresh": digests(view.state(reference.model, reference.optimizer)), "epochs": [], "rates": []}
    start, saved = (ranks[0].start("parameters"), ranks[0].start("statistics")), ranks[0].facts["saved_inside"]
    reference.load(*start, 1 if whole else layout.size)
    log.add_snapshot(0, [0.0], {}, _state(view, reference))
    epochs = {micro.update: micro.epoch for micro in ranks[0].micros}
    log.facts["validation"] = _validation_samples(validation, ranks)
    evaluated = validation if name in ("twin", "rounded") or synchronised else None
    for update, parts in enumerate(updates[:number], 1):
        rates = reference.due_rates(layout, update - 1)
        (reference.update_whole if whole else reference.update)(parts, rates[0])
        log.facts["rates"].append(rates)
        log.add_snapshot(update, rates, {}, _state(view, reference))
        if update == saved:
            reference.join_statistics()
            log.add_end(update, reference.own_statistics())
        if epochs.get(update + 1) != epochs[update]:
            done = len(log.facts["epochs"])
            log.facts["epochs"].append(reference.end_epoch(_validation(job, reference, evaluated, ranks, done)))
            log.add_end(update, reference.own_statistics())
            reference.move_schedule(ranks[0].facts["epochs"][done])
    if name == "whole":
        # at the end, since some losses keep a state
        reference.load(*start, 1)
        log.facts["probes"] = [reference.probe(parts) if joined else _UNJOINED for parts in updates[:_PROBES]]
        log.facts["unjoined"] = "" if joined else _UNJOINED


def _parts(ranks: list[Log], update: int) -> list[list[Micro]]:
    return [[micro for micro in rank.micros if micro.update == update] for rank in ranks]


def _can_be_joined(parts: list[list[Micro]]) -> bool:
    try:
        joined_batches(parts)
    except ValueError:
        return False
    return True


def _validation_samples(validation: Any, ranks: list[Log]) -> int:
    if validation is None:
        return 0
    if is_neutral(validation):
        return len(next(leaves(validation)))
    return sum(micro.count for rank in ranks for micro in rank.evaluated if micro.epoch == 0)


def _validation(job: Job, reference: Reference, validation: Any, ranks: list[Log], epoch: int) -> Any:
    """Return what one process evaluates: arrays; else, or where that draws random numbers, the ranks' batches."""
    if validation is None:
        return None
    if is_neutral(validation) and job.randomness != KEPT:
        return [validation]
    taken = [micro for rank in ranks for micro in rank.evaluated if micro.epoch == epoch and micro.count]
    return _again(reference, taken) if taken else None


def _again(reference: Reference, taken: list[Micro]) -> Iterator[tuple[Any, Any]]:
    for micro in taken:
        inputs, targets, draws = micro.load()
        reference.view.set_draws(reference.model, draws)
        yield map_tree(reference.view.neutral, inputs), targets


def _state(view: View, reference: Reference) -> State:
    state = view.state(reference.model, reference.optimizer)
    return {**state, "statistics": reference.own_statistics()}
