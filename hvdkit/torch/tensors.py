"""Tensors as named NumPy arrays of bytes or numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hvdkit.errors import ModelError


def named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers, each once, in the model's order."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def device_of(model: torch.nn.Module) -> torch.device:
    """Return where the parameters of a model lie; the CPU where it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def original(model: torch.nn.Module) -> torch.nn.Module:
    """Return what was given to ``torch.compile``, whose wrapper puts a prefix before the names of a state dict."""
    inner: torch.nn.Module = getattr(model, "_orig_mod", model)
    return inner


def kind(tensor: torch.Tensor) -> str:
    """Return dtype and shape as text, for comparison between ranks.

    Raises:
        ModelError: It is a parameter that the first call of the model will shape.
    """
    if torch.nn.parameter.is_lazy(tensor):
        raise ModelError("the model has lazy parameters, which have no shape yet; call it on a batch first")
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def from_array(array: ArrayLike) -> torch.Tensor:
    """Return an array as a tensor that shares its memory, or has a copy where torch cannot take its strides."""
    array = np.asarray(array)
    return torch.from_numpy(array.copy() if any(stride < 0 for stride in array.strides) else array)


def channels_first(images: torch.Tensor) -> torch.Tensor:
    """Return images NHWC as NCHW in channels_last strides, and other tensors as they are."""
    return images.permute(0, 3, 1, 2) if images.dim() == 4 else images


def to_bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return the bytes of a tensor of any dtype, in logical order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    array: NDArray[np.uint8] = flat.view(torch.uint8).numpy()
    return array


def copy_from_bytes(tensor: torch.Tensor, data: NDArray[np.uint8]) -> None:
    """Fill a tensor from what :func:`to_bytes` gave."""
    if not tensor.numel():
        return
    flat = torch.from_numpy(data.copy()).view(tensor.dtype)
    with torch.no_grad():
        tensor.copy_(flat.reshape(tensor.shape))


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sum_of_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's elements, their bits taken for whole numbers: int64, and another if one changes."""
    values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return values.view(_BITS[values.element_size()]).sum(dtype=torch.int64)


def numpy_arrays(model: torch.nn.Module) -> dict[str, NDArray[Any]]:
    """Return parameters and buffers as named arrays; bfloat16 as float32."""
    arrays = {}
    for name, tensor in named_tensors(model):
        value = tensor.detach().cpu()
        arrays[name] = (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    return arrays
