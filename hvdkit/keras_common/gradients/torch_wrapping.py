"""Keras on torch: gradients are reduced by hvdkit alone, also where Keras itself knows ``torch.distributed``."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import Any

from torch.nn.modules.module import register_module_module_registration_hook

from hvdkit.errors import ModelError
from hvdkit.keras_common.compat import keras

_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel"}


def reduce_alone(optimizer: Any, model: Any) -> None:
    """Keep Keras from reducing the gradients of a distributed optimizer too, or refuse it.

    From 3.16 on, Keras wraps a model in ``DistributedDataParallel`` wherever ``torch.distributed`` is initialised. One
    that is given here stays unwrapped; without one, each is refused when it is wrapped, as long as the optimizer lives.

    Raises:
        ModelError: A distribution of Keras's own is set, or there is no model and Keras has wrapped one already.
    """
    if keras().distribution.distribution() is not None:
        raise ModelError(
            "keras.distribution is set, by which Keras would distribute too; call keras.distribution.set_distribution"
            "(None) before distribute"
        )
    if hasattr(model, "ddp_model"):
        _leave_unwrapped(model)
    known = weakref.ref(model) if hasattr(model, "compile") else None
    if known is None:
        _refuse_wrapped()
    hook = register_module_module_registration_hook(functools.partial(_refuse_wrapping, known))
    weakref.finalize(optimizer, hook.remove)


def _leave_unwrapped(model: Any) -> None:
    """Let Keras call the model itself, and leave the sum of its metrics to ``MetricAverageCallback``."""
    # None would be replaced by a wrapper, and what is true would be called
    object.__setattr__(model, "ddp_model", False)
    kinds = [kind for kind in type(model).__mro__ if "get_metrics_result" in vars(kind)]
    if kinds[0].__module__.startswith("keras."):
        # that of all libraries; in front of it stands torch's, which sums over ranks in every step
        object.__setattr__(model, "get_metrics_result", vars(kinds[-1])["get_metrics_result"].__get__(model))


def _refuse_wrapped() -> None:
    gc.collect()  # so that no dead wrapper is found
    for wrapper in [held for held in gc.get_objects() if _wraps(type(held))]:
        for name, part in wrapper.named_children():
            _refuse_wrapping(None, wrapper, name, part)


def _refuse_wrapping(known: weakref.ref[Any] | None, module: Any, _name: str, part: Any) -> None:
    """Refuse a module that becomes part of a wrapper, if layers of the known model are in it, or any of Keras's."""
    if part is None or not _wraps(type(module)):
        return
    layers = [entry for entry in part.modules() if isinstance(entry, keras().layers.Layer)]
    if known is not None:
        model = known()
        trained = {id(entry) for entry in model.modules()} if model is not None else set()
        layers = [layer for layer in layers if id(layer) in trained]
    if layers:
        raise ModelError(
            f"{type(module).__name__} around Keras's {layers[0].name!r} would reduce gradients that hvdkit reduces in "
            "the optimizer; leave it out, or where Keras puts it there by itself, give the model too: "
            "distribute(optimizer, model), or use Keras 3.15"
        )


def _wraps(kind: type) -> bool:
    return not _WRAPPERS.isdisjoint(base.__name__ for base in kind.__mro__)
