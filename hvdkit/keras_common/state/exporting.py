"""Weights alone, as a safetensors file that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hvdkit.errors import CheckpointError
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.exporting import export_on_root
from hvdkit.keras_common.compat import name_of, to_numpy
from hvdkit.keras_common.state.files import synchronise_statistics
from hvdkit.keras_common.state.variables import model_variables


@on_all_ranks
def export_weights(path: str, model: Any) -> None:
    """Write a model's weights and statistics as safetensors on rank 0; called by all ranks.

    ``safetensors.numpy.load_file(path)`` reads them anywhere; names are the variables' paths, as
    ``dense/kernel``.

    Raises:
        CheckpointError: The package safetensors is missing, two variables have one path, or the file cannot be written;
            on every rank.
    """
    synchronise_statistics(model)

    def save(file: Path) -> None:
        from safetensors.numpy import save_file

        variables = list(model_variables(model).values())
        arrays = {name_of(variable).split(":")[0]: to_numpy(variable) for variable in variables}
        if len(arrays) < len(variables):
            raise CheckpointError("export_weights: variables of the model have the same path; give layers names")
        save_file(arrays, str(file))

    export_on_root(path, save)
