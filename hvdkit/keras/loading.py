"""Whole models from files: rank 0 reads, every rank gets the same."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hvdkit.errors import CheckpointError
from hvdkit.job import world as worlds
from hvdkit.keras.distribution import distribute
from hvdkit.keras_common.compat import keras, reads_optimizer_from_h5
from hvdkit.keras_common.state.variables import separate_random_state


def load_model(
    path: str,
    custom_objects: Mapping[str, Any] | None = None,
    *,
    compression: str = "none",
    clip_norm: float | None = None,
) -> Any:
    """Load a whole model that Keras has saved, with or without hvdkit; called by all ranks.

    Only rank 0 needs to see the file. Nothing in it is unpickled or run: ``.keras`` is read in ``safe_mode``, and an
    ``.h5`` file with a Lambda layer, whose code Keras 2 would run, is refused.

    Args:
        path: A ``.keras`` file, or in Keras 2 an ``.h5`` one.
        custom_objects: Custom classes by their names, where they are not registered with Keras.
        compression: As in :func:`hvdkit.keras.distribute`.
        clip_norm: As in :func:`hvdkit.keras.distribute`.

    Returns:
        The model, compiled as it was saved. Its optimizer is distributed and has its slots; random state is each
        rank's own.

    Raises:
        CheckpointError: The file is missing or cannot be loaded, or the model in it was not compiled; on every rank.
    """
    world = worlds.current()
    content: bytes = world.root_only(lambda: _read(path))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / Path(path).name
        copy.write_bytes(content)
        try:
            model = keras().models.load_model(str(copy), custom_objects=custom_objects, safe_mode=True)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise CheckpointError(f"{path} cannot be loaded: {reason}") from error
    if getattr(model, "optimizer", None) is None:
        raise CheckpointError(f"{path} holds a model that was not compiled; load it with Keras, then distribute()")
    distribute(model.optimizer, model, compression=compression, clip_norm=clip_norm)
    separate_random_state(world, model)
    return model


def _read(path: str) -> bytes:
    if not str(path).endswith((".keras", ".h5")) or str(path).endswith(".weights.h5"):
        raise CheckpointError(f"{path} is no whole model; give a .keras or .h5 file")
    if str(path).endswith(".h5") and not reads_optimizer_from_h5():
        raise CheckpointError(f"{path}: Keras 3 does not read an optimizer's state from .h5; save the model as .keras")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    if str(path).endswith(".h5") and _has_code(path):
        raise CheckpointError(
            f"{path} has a Lambda layer, whose code Keras would run from the file; build the model and load its "
            "weights, or save it as .keras without Lambda"
        )
    return content


def _has_code(path: str) -> bool:
    """Say whether a model in an HDF5 file has a layer that is code."""
    import h5py

    try:
        with h5py.File(path) as file:
            config = json.loads(file.attrs.get("model_config", "null"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {' '.join(str(error).split())}") from error
    return any(entry.get("class_name") in ("Lambda", "__lambda__") for entry in _dicts(config))


def _dicts(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        yield tree
        tree = list(tree.values())
    if isinstance(tree, list):
        for entry in tree:
            yield from _dicts(entry)
