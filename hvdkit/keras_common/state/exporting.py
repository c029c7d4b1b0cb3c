"""Weights alone, as a safetensors file that other tools read."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import CheckpointError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.files import write_atomically
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

    def export() -> None:
        try:
            from safetensors.numpy import save_file
        except ImportError as error:
            raise CheckpointError("export_weights needs the package safetensors: pip install safetensors") from error
        variables = list(model_variables(model).values())
        arrays = {name_of(variable).split(":")[0]: to_numpy(variable) for variable in variables}
        if len(arrays) < len(variables):
            raise CheckpointError("export_weights: variables of the model have the same path; give layers names")
        write_atomically(path, lambda file: save_file(arrays, str(file)))

    worlds.current().root_only(export)
