"""Brings batches to a model's device while that still computes with the one before."""

from __future__ import annotations

from typing import Any

import torch


class Copies:
    """Copies tensors to a device, from pinned memory on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def bring(self, part: Any) -> torch.Tensor:
        """Return a tensor, or an array as a tensor, on the device; what is given next to the device waits for it."""
        tensor = torch.as_tensor(part)
        if self._stream is None or tensor.is_cuda or not tensor.is_pinned():
            return tensor.to(self._device)
        with torch.cuda.stream(self._stream):
            brought = tensor.to(self._device, non_blocking=True)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        brought.record_stream(current)
        return brought
