"""Weights alone, as a safetensors file that other tools read."""

from __future__ import annotations

import torch

from hvdkit.errors import CheckpointError
from hvdkit.job import world as worlds
from hvdkit.job.collective import on_all_ranks
from hvdkit.job.files import write_atomically
from hvdkit.torch.synchronising import synchronise_statistics
from hvdkit.torch.tensors import original


@on_all_ranks
def export_weights(path: str, model: torch.nn.Module) -> None:
    """Write a model's weights and statistics as safetensors on rank 0; called by all ranks.

    ``safetensors.torch.load_model(model, path)`` reads them anywhere; names are those of the ``state_dict``, and of
    tensors that are shared the first one's.

    Raises:
        CheckpointError: The package safetensors is missing, or the file cannot be written; on every rank.
    """
    synchronise_statistics(model)

    def export() -> None:
        try:
            from safetensors.torch import save_model
        except ImportError as error:
            raise CheckpointError("export_weights needs the package safetensors: pip install safetensors") from error
        write_atomically(path, lambda file: save_model(original(model), str(file)))

    worlds.current().root_only(export)
