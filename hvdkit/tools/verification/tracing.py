"""What runs in one process per framework when ``hvdkit verify --across`` compares frameworks."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

import hvdkit
from hvdkit.errors import ModelError, RecipeError
from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.optimizers import Adam, AdamW, Optimizer
from hvdkit.recipe.steps import Distribute, Init
from hvdkit.tools.verification.arguments import Part, neutral_optimizer
from hvdkit.tools.verification.framework_view import View, view_of
from hvdkit.tools.verification.jobs import Job
from hvdkit.tools.verification.layout import Layout, cut, global_batch, is_neutral, load_data
from hvdkit.tools.verification.storage import Arrays, Log, sample_digests

EPS = 1e-12
_ADAMS = (Adam, AdamW)


def trace(job: Job, steps: int, dtype: str, start: str, turned: bool) -> None:
    """Train on one process, update by update, and write down losses, weights and samples.

    Args:
        job: Whose folder gets the log.
        steps: Updates, about.
        dtype: Of weights and inputs.
        start: The log whose initial weights are taken; empty for the model's own.
        turned: Take the samples of each batch from last to first, which changes nothing but the order of sums.
    """
    view = view_of(job.framework)
    view.set_dtype(dtype)
    recipe, layout = _shortened(job, view, steps, dtype)
    trainer = hvdkit.apply(recipe, framework=job.framework)
    log = Log(trace_folder(job, turned))
    drawn = _weights(view, trainer.model)
    names = list(drawn)
    if start:
        names = _carry(view, trainer.model, Log.load(start).start("parameters"))

    def weights() -> Arrays:
        return dict(zip(names, _weights(view, trainer.model).values(), strict=True))

    def note() -> None:
        log.add_snapshot(trainer.global_step, view.rates(trainer.optimizer), {}, {"parameters": weights()})

    layers = [kind for _, kind in view.layers(trainer.model)]
    log.facts |= {"losses": [], "samples": [], "layers": layers, "adam": "Adam" in type(trainer.optimizer).__name__}
    log.facts |= {"framework": job.framework, "own_eps": isinstance(recipe.pick("optimizer", job.framework), _ADAMS)}
    log.facts["parts"] = [dataclasses.asdict(part) for part in _parts(job, trainer)]
    view.freeze(trainer.model)
    log.keep_start({"parameters": weights(), "drawn": drawn})
    note()
    for epoch in range(layout.epochs):
        trainer.batches.set_epoch(epoch)
        for _, batch in zip(range(layout.steps), trainer.batches, strict=False):
            x, y = (np.asarray(part) for part in batch[:2])
            log.facts["samples"].append(sample_digests(view.neutral(x), y))
            taken = [part[::-1].copy() for part in (x, y)] if turned else batch[:2]
            log.facts["losses"].append(trainer.step(taken)["loss"])
            note()
    log.facts["evaluation"] = trainer.evaluate() if recipe.data().validation is not None else {}
    log.save()


def _parts(job: Job, trainer: Any) -> Iterator[Part]:
    library = "torch" if job.framework == "torch" else "keras"
    module = importlib.import_module(f"hvdkit.tools.verification.{library}_arguments")
    source = job.source.load().pick("optimizer", job.framework)
    yield neutral_optimizer(source) if isinstance(source, Optimizer) else module.describe_optimizer(trainer.optimizer)
    yield from module.describe_layers(trainer.model)


def trace_folder(job: Job, turned: bool) -> str:
    """Return where a log lies."""
    return f"{job.folder}/{job.framework}{'-turned' if turned else ''}"


def _shortened(job: Job, view: View, steps: int, dtype: str) -> tuple[Recipe, Layout]:
    """Return the recipe for one process, of which every batch makes an update."""
    recipe = job.source.load()
    settings = recipe.distribute
    optimizer = recipe.pick("optimizer", job.framework)
    if isinstance(optimizer, _ADAMS):
        # Keras adds it before the bias correction, torch after it
        optimizer = dataclasses.replace(optimizer, eps=EPS)
    recipe = recipe.replace(
        optimizer=optimizer,
        observers=(),
        checkpoint=None,
        stop_at=None,
        precision="fp32",
        init=Init("serial"),
        distribute=Distribute(clip_norm=settings.clip_norm) if settings else None,
    )
    data = load_data(recipe, job.framework)
    samples = len(data.train[0]) if is_neutral(data.train) else None
    layout = Layout.fit(recipe, samples, 1, steps, dtype)
    few = cut(data, layout, global_batch(recipe, 1))

    def model() -> Any:
        return view.build(recipe, data)

    return recipe.replace(model=model, data=lambda: few, epochs=layout.epochs), layout


def _weights(view: View, model: Any) -> Arrays:
    try:
        return view.named_arrays(model)
    except ModelError as error:
        raise RecipeError(f"--across cannot carry weights between frameworks: {error}") from None


def _carry(view: View, model: Any, start: Arrays) -> list[str]:
    """Give a model the weights of another framework's; return the names that its own arrays have there.

    They are carried by name, or by order where names differ but parts and shapes do not.

    Raises:
        RecipeError: The models' arrays differ.
    """
    own = _weights(view, model)
    names = list(own) if set(own) == set(start) else list(start)
    mine, theirs = _kinds(own, own), _kinds(start, names)
    if mine != theirs:
        raise RecipeError(
            f"--across cannot carry weights between these models: in {view.framework} they are {', '.join(mine)}; "
            f"in the first framework {', '.join(theirs)}"
        )
    view.load_arrays(model, {name: start[given] for name, given in zip(own, names, strict=True)})
    return names


def _kinds(arrays: Arrays, names: Iterable[str]) -> list[str]:
    return [f"{name.rpartition('/')[2]} {'x'.join(map(str, arrays[name].shape))}" for name in names]
