"""``apply``: chooses the backend and walks the eight steps."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any, cast

from hvdkit.datasets import check
from hvdkit.errors import CheckpointError, DataError, RecipeError
from hvdkit.job import manifest
from hvdkit.job.files import Saved, epoch_files
from hvdkit.job.world import World
from hvdkit.process import failures
from hvdkit.process.environment import restarts
from hvdkit.recipe.declaration import FRAMEWORKS, Data, Recipe
from hvdkit.recipe.fingerprint import differences, fingerprint
from hvdkit.recipe.plan import LearningRate, steps_for_rank
from hvdkit.recipe.steps import Init
from hvdkit.recipe.support import check_served, torch_only
from hvdkit.recipe.trees import is_arrays, samples_of
from hvdkit.training.backend import Backend
from hvdkit.training.batches import Batches
from hvdkit.training.observers import say
from hvdkit.training.same_data import check_same_arrays
from hvdkit.training.trainer import Setup, Trainer, resumed_batch_size


def apply(recipe: Recipe, framework: str) -> Trainer:
    """Carry out the eight steps of a recipe in one framework.

    Args:
        recipe: What to train, and how to distribute it.
        framework: ``torch``, ``tf`` or ``keras``.

    Returns:
        A trainer whose model is built, distributed and the same on all ranks.

    Raises:
        RecipeError: The framework is unknown or not installed.
        EngineError: The engine cannot serve this framework.
        LaunchError: Launcher and engine do not fit.
        DataError: The data are empty, too small, malformed, or not the same on all ranks.
        ModelError: The model cannot be trained as it is.
        CheckpointError: The newest checkpoint cannot be read or does not fit this number of processes.
    """
    failures.watch_exceptions()
    if framework not in FRAMEWORKS:
        raise RecipeError(f"framework {framework!r} is unknown; use one of {', '.join(FRAMEWORKS)}")
    if not isinstance(recipe, Recipe):
        raise RecipeError(f"apply needs an hvdkit.Recipe, it got {type(recipe).__name__}")
    check_served(recipe, framework)
    started = time.perf_counter()
    backend = _backend(framework)
    joining = recipe.init or Init("serial")
    world = backend.init(
        joining.engine, guard=recipe.guard, report_after=joining.report_after, stuck_after=joining.stuck_after
    )
    device = backend.pin(recipe.pin.threads) if recipe.pin else backend.default_device()
    backend.seed_all(recipe.seed)
    data = _data(recipe, framework)
    _check_shared(data, world)
    position, saved = _newest(backend, recipe, framework, world)
    batch_size = resumed_batch_size(recipe, world.size, position)
    batches = _shard(backend, recipe, framework, data.train, batch_size, world)
    accumulate = recipe.distribute.accumulate if recipe.distribute else 1
    with backend.computing_in(recipe.precision):
        model = backend.build_model(recipe.pick("model", framework), recipe.seed, device, data)
    optimizer, base = backend.build_optimizer(recipe.pick("optimizer", framework), model)
    rule = recipe.scale_lr.rule if recipe.scale_lr else "none"
    target = backend.scale_lr(base, rule, accumulate)
    warmup = recipe.scale_lr.warmup_epochs if recipe.scale_lr else 0.0
    rates = LearningRate(base, target, batches.steps, warmup, recipe.schedule)
    if recipe.distribute is not None:
        settings = recipe.distribute
        optimizer = backend.distribute(
            optimizer,
            model,
            compression=settings.compression,
            accumulate=settings.accumulate,
            clip_norm=settings.clip_norm,
            **torch_only(settings, framework),
        )
    setup = Setup(
        backend, recipe, world, device, batches, data.validation, rates, model, optimizer, batch_size, started
    )
    trainer = backend.make_trainer(setup)
    if position is not None:
        trainer.resume(saved)
    elif recipe.broadcast is not None and recipe.broadcast.when == "before_first_step":
        backend.broadcast(model, optimizer, recipe.broadcast.root)
    return trainer


def _backend(framework: str) -> Backend:
    try:
        backend = cast(Backend, importlib.import_module(f"hvdkit.{framework}"))
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "hvdkit":
            raise
        raise RecipeError(
            f"framework {framework!r} needs the package {error.name!r}; "
            f"install it with: pip install 'hvdkit[{framework}]'"
        ) from error
    return backend


def _data(recipe: Recipe, framework: str) -> Data:
    """Load the data on every rank."""
    source = recipe.pick("data", framework)
    data = source if isinstance(source, Data) else source()
    if not isinstance(data, Data):
        raise RecipeError(f"Recipe.data must give hvdkit.Data(train=..., validation=...), not {type(data).__name__}")
    if isinstance(data.train, (tuple, dict)):
        check(data)
    return data


def _check_shared(data: Data, world: World) -> None:
    """Refuse data of which ranks hold different parts: some would wait for others that have none."""
    lengths = {"training": _length(data.train), "validation": _length(data.validation)}
    gathered = world.engine.allgather_object(lengths)
    for rank, others in enumerate(gathered):
        for name, first in gathered[0].items():
            if others[name] != first:
                raise DataError(
                    f"{name} data: {first} on rank 0 but {others[name]} on rank {rank}; give every rank all the data, "
                    "hvdkit shards them itself"
                )
    if data.validation is not None and is_arrays(data.validation):
        check_same_arrays(world, data.validation)


def _length(part: Any) -> str:
    if part is None:
        return "none"
    return f"{samples_of(part)} samples" if is_arrays(part) else f"a {type(part).__name__}"


def _shard(backend: Backend, recipe: Recipe, framework: str, train: Any, batch_size: int, world: World) -> Batches:
    """Step 3; without it every rank takes all the data."""
    if recipe.shard is None:
        raise RecipeError("Recipe.shard is None: every process would train on all the data; give an hvdkit.Shard()")
    settings = recipe.shard
    steps = recipe.steps_per_epoch
    return backend.shard(
        train,
        batch_size,
        shuffle=settings.shuffle,
        seed=recipe.seed,
        uneven=settings.uneven,
        accumulate=recipe.distribute.accumulate if recipe.distribute else 1,
        steps_per_epoch=None if steps is None else steps_for_rank(steps, world.size),
        workers=settings.workers,
        prefetch=settings.prefetch,
        pin_memory=settings.pin_memory,
        **torch_only(settings, framework),
    )


def _readable(backend: Backend, files: list[Path]) -> list[Saved]:
    """Return the newest of some files that can be read; nothing if there are none.

    Raises:
        CheckpointError: None of them can.
    """
    problems: list[CheckpointError] = []
    for path in reversed(files):
        try:
            manifest.check(path)
            saved = backend.read_saved(str(path))
        except CheckpointError as error:
            problems.append(error)
            continue
        for problem in problems:
            say(f"hvdkit: {problem}; going on from {path.name} instead")
        return [saved]
    if problems:
        raise problems[0]
    return []


def _check_same_recipe(saved: Saved, recipe: Recipe, framework: str) -> None:
    """Refuse to go on with another recipe, and say what a run goes on from."""
    assert recipe.checkpoint is not None
    state = saved.state
    # files of before had none
    changed = differences(state.get("recipe", {}), fingerprint(recipe, framework)) if "recipe" in state else []
    if changed and not recipe.checkpoint.force:
        raise CheckpointError(
            f"checkpoint {saved.path} was saved with another recipe: {', '.join(changed)}; go on all the same with "
            "Checkpoint(force=True), or name an empty folder"
        )
    forced = f", with another recipe: {', '.join(changed)}" if changed else ""
    steps = state.get("steps_into_epoch", 0)
    inside = f" and {steps} update(s)" if steps else ""
    say(f"hvdkit: going on from {saved.path}, after {state['epoch']} of {recipe.epochs} epoch(s){inside}{forced}")


def _newest(
    backend: Backend, recipe: Recipe, framework: str, world: World
) -> tuple[dict[str, Any] | None, Saved | None]:
    """Let rank 0 read the checkpoint that the run goes on from; return its position and, on rank 0, all of it."""
    settings = recipe.checkpoint
    if settings is None:
        return None, None
    found: list[Saved] = []

    def look() -> dict[str, Any] | None:
        files = epoch_files(settings.directory, backend.SUFFIX)
        # those of a job that was started again are its own
        if files and not settings.resume and not restarts():
            raise CheckpointError(
                f"{settings.directory} holds {len(files)} checkpoint(s) of an earlier run; resume from them, or name "
                "an empty folder"
            )
        found.extend(_readable(backend, files))
        if not found:
            return None
        _check_same_recipe(found[0], recipe, framework)
        return found[0].state

    position: dict[str, Any] | None = world.root_only(look)
    return position, found[0] if found else None
