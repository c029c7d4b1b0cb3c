"""Weights alone, as a safetensors file that other tools read."""

from __future__ import annotations

from pathlib import Path

import torch

from hvdkit.job.collective import on_all_ranks
from hvdkit.job.exporting import export_on_root
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

    def save(file: Path) -> None:
        from safetensors.torch import save_model

        save_model(original(model), str(file))

    export_on_root(path, save)
