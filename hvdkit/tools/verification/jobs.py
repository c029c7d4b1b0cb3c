"""What runs in the separate processes that ``hvdkit verify`` starts."""

from __future__ import annotations

import dataclasses
import functools
import resource
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.process.environment import launched_as
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.steps import Checkpoint, Init
from hvdkit.tools.verification.framework_view import View, view_of
from hvdkit.tools.verification.layout import Layout, cut, expected_rate, global_batch, is_neutral, load_data
from hvdkit.tools.verification.recording import Recorder
from hvdkit.tools.verification.reference import Reference, whole
from hvdkit.tools.verification.source import Source
from hvdkit.tools.verification.storage import Log, State, digest, digests, sample_digests


@dataclass(frozen=True)
class Job:
    """What all runs share.

    Attributes:
        source: The recipe.
        framework: ``torch``, ``tf`` or ``keras``.
        engine: Of the run with several processes.
        folder: Where every process writes.
        layout: The size of the runs; None before it is known.
    """

    source: Source
    framework: str
    engine: str
    folder: str
    layout: Layout | None = None


def survey(job: Job, size: int, steps: int, dtype: str) -> dict[str, Any]:
    """Run two steps on one process; return what the parent must know of the recipe, the model and their cost."""
    began = time.perf_counter()
    view = view_of(job.framework)
    view.set_dtype(dtype)
    recipe = job.source.load()
    _check(recipe)
    data = load_data(recipe, job.framework)
    samples = len(data.train[0]) if is_neutral(data.train) else None
    few = cut(data, Layout(1, 1, 1, 4 * recipe.batch_size, dtype), recipe.batch_size)
    trainer = hvdkit.apply(_bare(recipe).replace(data=few, init=Init("serial")), framework=job.framework)
    seconds = [time.perf_counter() - began]
    batch: Any = None
    for batch, _ in zip(trainer.batches, range(2), strict=False):
        began = time.perf_counter()
        trainer.step(batch[:2])
        seconds.append(time.perf_counter() - began)
    state = view.state(trainer.model, trainer.optimizer)
    layers = list(view.layers(trainer.model))
    view.freeze(trainer.model)
    return {
        "layout": Layout.fit(recipe, samples, size, steps, dtype),
        "samples": samples,
        "seconds": seconds,
        "weights": sum(value.size for value in state["parameters"].values()),
        "state_bytes": sum(value.nbytes for arrays in state.values() for value in arrays.values()),
        "update_bytes": int(np.asarray(batch[0]).nbytes) * global_batch(recipe, size) // recipe.batch_size,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "layers": layers,
        "random": view.is_random(trainer.model, batch[0]),
        "global_batch": global_batch(recipe, size),
        "uneven": recipe.shard.uneven if recipe.shard else "exact",
        "seed": recipe.seed,
        "shuffle": recipe.shard.shuffle if recipe.shard else False,
        "precision": recipe.precision,
        "compression": recipe.distribute.compression if recipe.distribute else "none",
        "synchronised": recipe.distribute is not None and recipe.distribute.sync_batchnorm,
        "reordered": recipe.compile or bool(recipe.distribute and recipe.distribute.gradient_predivide),
        "off": [step for step in ("broadcast", "average") if getattr(recipe, step) is None],
        "shared_threads": recipe.pin is not None and recipe.pin.threads == "auto",
    }


def train(job: Job, name: str) -> None:
    """Train the recipe as it is on this rank, watched; go on from a checkpoint if there is one."""
    view, recipe = _begin(job)
    rank = launched_as().rank
    recorder = Recorder(view, f"{job.folder}/{name}-{rank}")
    disturbed = recipe.broadcast is not None and rank != recipe.broadcast.root
    recipe = prepared(recipe, job, view, rank if disturbed else None).replace(
        observers=(recorder,), checkpoint=Checkpoint(f"{job.folder}/checkpoints", keep=99)
    )
    trainer = hvdkit.apply(recipe, framework=job.framework)
    recorder.log.facts["random"] = view.random_state(trainer.model)
    view.record_batches(trainer, recorder)
    trainer.fit()
    data = recipe.data()
    if is_neutral(data.train):
        recorder.log.facts["data"] = _digest(data)
    recorder.finish(trainer)
    trainer.shutdown()


def _digest(data: Data) -> str:
    return " ".join(digest(part) for part in data.train)


def _begin(job: Job) -> tuple[View, Recipe]:
    assert job.layout is not None
    view = view_of(job.framework)
    view.set_dtype(job.layout.dtype)
    return view, job.source.load()


def prepared(recipe: Recipe, job: Job, view: View, disturb: int | None) -> Recipe:
    """Return the recipe for a verified run: cut data, frozen dropout, and on demand other weights than the root's."""
    layout = job.layout
    assert layout is not None
    kept = layout
    everything = functools.cache(lambda: load_data(recipe, job.framework))

    def model() -> Any:
        built = view.build(recipe, everything())
        view.freeze(built)
        if disturb is not None:
            view.disturb(built, disturb)
        return built

    def data() -> Data:
        return cut(everything(), kept, global_batch(recipe, kept.size))

    return _bare(recipe).replace(
        model=model,
        data=data,
        init=Init(job.engine) if recipe.init else None,
        epochs=layout.epochs,
        steps_per_epoch=None if layout.samples is not None else layout.steps * layout.size,
    )


def _bare(recipe: Recipe) -> Recipe:
    """Return what is verified of a recipe: in full precision, since rounding would hide faults."""
    settings = recipe.distribute
    if settings is not None:
        settings = dataclasses.replace(settings, compression="none")
    # what the guard would stop at is for the checks to find
    return recipe.replace(
        observers=(), checkpoint=None, stop_at=None, precision="fp32", distribute=settings, guard=False
    )


def _check(recipe: Recipe) -> None:
    if recipe.distribute is not None and recipe.distribute.reduction == "adasum":
        raise RecipeError(
            "Distribute(reduction='adasum') is no mean: N processes do not compute what one would; verify it with "
            "reduction='average'"
        )


def replay(job: Job, threads: int) -> None:
    """Train the reference on the batches that the ranks have seen: as the twin, then on whole global batches."""
    view, recipe = _begin(job)
    view.set_threads(threads)
    recipe = prepared(recipe, job, view, None)
    data = recipe.data()
    for name in ("twin", "whole"):
        log = Log(f"{job.folder}/{name}")
        if is_neutral(data.train):
            log.facts["samples"] = sample_digests(*data.train)
            log.facts["data"] = _digest(data)
        _replay(job, view, recipe, log, data.validation if is_neutral(data.validation) else None)
        log.save()


def _replay(job: Job, view: View, recipe: Recipe, log: Log, validation: Any) -> None:
    """Do all updates, and note the metrics of each epoch."""
    layout = job.layout
    assert layout is not None
    reference = view.reference(recipe)
    ranks = [Log.load(f"{job.folder}/ranks-{rank}") for rank in range(layout.size)]
    reference.prime(ranks[0].micros[0].arrays()["x"])
    rates = [expected_rate(recipe, reference.base, layout, step) for step in range(layout.updates)]
    log.facts |= {"fresh": digests(view.state(reference.model, reference.optimizer)), "rates": rates, "epochs": []}
    twin = log.folder.endswith("twin")
    start = ranks[0].at(0)
    reference.load(start.arrays("parameters"), start.arrays("statistics"), layout.size if twin else 1)
    log.add_snapshot(0, 0.0, _state(view, reference))
    done = min(rank.facts["updates"] for rank in ranks)
    epochs = {micro.update: micro.epoch for micro in ranks[0].micros}
    log.facts["losses"] = []
    for update, rate in enumerate(rates[:done], 1):
        before, counted = reference.sums.get("loss", (0.0, 0.0))
        parts = [[micro for micro in rank.micros if micro.update == update] for rank in ranks]
        if twin:
            reference.update(parts, rate)
        else:
            reference.update_whole(whole(parts), rate)
        total, count = reference.sums["loss"]
        log.facts["losses"].append((total - before) / (count - counted))
        log.add_snapshot(update, rate, _state(view, reference))
        if epochs.get(update + 1) != epochs[update]:
            log.facts["epochs"].append(reference.end_epoch(validation))


def _state(view: View, reference: Reference) -> State:
    state = view.state(reference.model, reference.optimizer)
    return {**state, "statistics": reference.own_statistics()}
