"""What runs in the separate processes that ``hvdkit verify`` starts."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import resource
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.process.environment import launched_as
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.steps import Checkpoint, Init
from hvdkit.recipe.trees import leaves
from hvdkit.tools.verification.framework_view import View, view_of
from hvdkit.tools.verification.given import DRAWN, READ, STREAM, Given, given, identity
from hvdkit.tools.verification.layout import Layout, accumulate, cut, global_batch, is_neutral, load_data
from hvdkit.tools.verification.orders import take
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, NONE
from hvdkit.tools.verification.recording import Recorder
from hvdkit.tools.verification.resuming import inside_update, keeps_states
from hvdkit.tools.verification.source import Source
from hvdkit.tools.verification.storage import CHECKPOINTS, sketches

_BEHIND = 10
"""Units of ``nice``."""

_STEPS, _ENOUGH = 4, 1.0
"""The survey's steps, and after how many seconds two are enough."""


@dataclass(frozen=True)
class Job:
    """What all runs share.

    Attributes:
        source: The recipe.
        framework: ``torch``, ``tf`` or ``keras``.
        engine: Of the run with several processes.
        folder: Where every process writes.
        layout: The size of the runs; None before it is known.
        randomness: Its kind in a training pass; what cannot be drawn again is switched off as far as it can be.
        arrays: Whether all data are arrays.
    """

    source: Source
    framework: str
    engine: str
    folder: str
    layout: Layout | None = None
    randomness: str = NONE
    arrays: bool = False


def survey(job: Job, size: int, steps: int, dtype: str) -> dict[str, Any]:
    """Run some steps on one process; return what the parent must know of the recipe, the model and their cost."""
    began = time.perf_counter()
    view = view_of(job.framework)
    view.set_dtype(dtype)
    recipe = job.source.load()
    _check(recipe)
    data = load_data(recipe, job.framework)
    found = given(view, data.train)
    recipe = _as_loaded(recipe, found)
    few = cut(data, Layout(1, 1, 1, 4 * recipe.batch_size, dtype), recipe.batch_size, view)
    steps_here = recipe.steps_per_epoch if found.samples is None else None
    alone = _bare(recipe).replace(data=few, init=Init("serial"), steps_per_epoch=steps_here, broadcast=None)
    trainer = hvdkit.apply(alone, framework=job.framework)
    seconds = [time.perf_counter() - began]
    batch: Any = None
    for batch, number in zip(trainer.batches, range(_STEPS), strict=False):
        if number > 1 and sum(seconds[1:]) > _ENOUGH:
            break
        began = time.perf_counter()
        trainer.step(batch[:2])
        seconds.append(time.perf_counter() - began)
    trainer.shutdown()
    state = view.state(trainer.model, trainer.optimizer)
    layers = list(view.layers(trainer.model))
    # sparse gradients of several passes are added up row by row, and in another order
    sparse = accumulate(recipe) > 1 and any("Embedding" in kind for _, kind in layers)
    return {
        "layout": Layout.fit(recipe, found.samples, size, steps, dtype, whole_data=found.kind == DRAWN),
        "seconds": seconds,
        "weights": sum(value.size for value in state["parameters"].values()),
        "state_bytes": sum(value.nbytes for arrays in sketches(state).values() for value in arrays.values()),
        "weight_bytes": sum(value.nbytes for value in state["parameters"].values()),
        "slot_bytes": sum(value.nbytes for value in state["slots"].values()),
        "update_bytes": sum(view.array(leaf).nbytes for leaf in leaves(batch[0]))
        * global_batch(recipe, size)
        // recipe.batch_size,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "on_cpu": view.device(trainer.model).lower() == "cpu",
        "layers": layers,
        "global_batch": global_batch(recipe, size),
        "uneven": recipe.shard.uneven if recipe.shard else "exact",
        "seed": recipe.seed,
        "shuffle": recipe.shard.shuffle if recipe.shard else False,
        "precision": recipe.precision,
        "compression": recipe.distribute.compression if recipe.distribute else "none",
        "synchronised": recipe.distribute is not None and recipe.distribute.sync_batchnorm,
        "reordered": recipe.compile or sparse or bool(recipe.distribute and recipe.distribute.gradient_predivide),
        "stream": found.kind == STREAM,
        "read": found.kind in READ,
        "arrays": all(part is None or is_neutral(part) for part in (data.train, data.validation)),
        "observers": len(recipe.observers),
        "stop_at": dict(recipe.stop_at or {}),
        "metrics_with_states": keeps_states(recipe),
        "resumes_inside": trainer.resumes_inside_epochs,
        "off": [step for step in ("broadcast", "average") if getattr(recipe, step) is None],
        "shared_threads": recipe.pin is not None and recipe.pin.threads == "auto",
        "randomness": view.randomness(recipe, trainer.model, batch),
    }


def _as_loaded(recipe: Recipe, found: Given) -> Recipe:
    """Return a recipe with what the user's own loader asks for."""
    asked = {name: value for name in ("shuffle", "uneven") if (value := getattr(found, name)) is not None}
    return recipe.replace(shard=dataclasses.replace(recipe.shard, **asked)) if recipe.shard and asked else recipe


def train(job: Job) -> None:
    """Train the recipe as it is on this rank, watched, with a file after every epoch and one inside.

    The framework is imported before the job's layout is known.
    """
    view_of(job.framework)
    layout, randomness = take(job.folder, "train")
    job = replace(job, layout=layout, randomness=randomness)
    view, recipe = begin(job)
    recorder = Recorder(view, f"{job.folder}/ranks-{launched_as().rank}")
    recipe = watched(recipe, job, view, recorder).replace(checkpoint=Checkpoint(f"{job.folder}/{CHECKPOINTS}", keep=99))
    trainer = hvdkit.apply(recipe, framework=job.framework)
    view.record_batches(trainer, recorder)
    trainer.fit()
    recorder.log.facts["data"] = identity(view, recipe.data())
    recorder.finish(trainer)
    trainer.shutdown()


def watched(recipe: Recipe, job: Job, view: View, recorder: Recorder) -> Recipe:
    """Return the recipe for a rank, with what watches it."""
    assert job.layout is not None
    recorder.save_at = None if keeps_states(recipe) else inside_update(job.layout)
    rank = launched_as().rank
    disturbed = recipe.broadcast is not None and rank != recipe.broadcast.root
    return prepared(recipe, job, view, rank if disturbed else None).replace(observers=(recorder,))


def begin(job: Job) -> tuple[View, Recipe]:
    """Return what knows the framework, and the recipe."""
    assert job.layout is not None
    view = view_of(job.framework)
    view.compute_alike()
    view.set_dtype(job.layout.dtype)
    return view, job.source.load()


def stand_back() -> None:
    """Leave the processor to the twin, which takes longest, where it runs beside this process."""
    os.nice(_BEHIND)
    # Linux may share processors among sessions first, and by nice inside each
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_BEHIND))


def prepared(recipe: Recipe, job: Job, view: View, disturb: int | None) -> Recipe:
    """Return the recipe for a verified run: cut data, and on demand other weights than the root's."""
    layout = job.layout
    assert layout is not None
    kept = layout
    everything = functools.cache(lambda: load_data(recipe, job.framework))

    def model() -> Any:
        built = view.build(recipe, everything())
        if job.randomness in (FROZEN, HIDDEN):
            view.freeze(built)
        if disturb is not None:
            view.disturb(built, disturb)
        return built

    def data() -> Data:
        return cut(everything(), kept, global_batch(recipe, kept.size), view)

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
    # passes of one update that are recorded together begin behind its last batch, where the recorder looks at each
    graphs = recipe.cuda_graphs if accumulate(recipe) == 1 else False
    # what the guard would stop at is for the checks to find
    return recipe.replace(
        observers=(),
        checkpoint=None,
        stop_at=None,
        precision="fp32",
        distribute=settings,
        guard=False,
        cuda_graphs=graphs,
    )


def _check(recipe: Recipe) -> None:
    if recipe.distribute is not None and recipe.distribute.reduction == "adasum":
        raise RecipeError(
            "Distribute(reduction='adasum') is no mean: N processes do not compute what one would; verify it with "
            "reduction='average'"
        )
