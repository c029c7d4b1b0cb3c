"""A stand-in for a Keras on torch that takes part in torch.distributed by itself, as 3.16 is going to.

Where a process group is there, it puts DistributedDataParallel around a model before it trains, evaluates or predicts,
calls the wrapper in its steps, and sums the metrics of all ranks in every step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import torch
import torch.distributed as dist
from keras.src.backend.torch.trainer import TorchTrainer


@contextlib.contextmanager
def wrapping_itself(attribute: str = "ddp_model") -> Iterator[None]:
    """Let Keras wrap models for a while, and hold the wrapper under a name."""
    makers = {name: _wrapping(getattr(TorchTrainer, name), attribute) for name in _MAKERS}
    steps = {"train_step": _train_step, "test_step": _test_step}
    methods = {**makers, **steps, "get_metrics_result": _summed, "_caller": _caller(attribute), attribute: None}
    with contextlib.ExitStack() as stack:
        for name, method in methods.items():
            stack.enter_context(mock.patch.object(TorchTrainer, name, method, create=True))
        yield


_MAKERS = ("make_train_function", "make_test_function", "make_predict_function")


def _wrapping(make: Any, attribute: str) -> Any:
    def made(self: Any, force: bool = False) -> Any:
        if dist.is_initialized() and getattr(self, attribute) is None:
            object.__setattr__(self, attribute, torch.nn.parallel.DistributedDataParallel(self))
        return make(self, force)

    return made


def _caller(attribute: str) -> Any:
    return lambda self: getattr(self, attribute) or self


def _loss(model: Any, data: Any, training: bool) -> tuple[Any, tuple[Any, ...]]:
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    outputs = model._caller()(x, training=training)
    loss = model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight, training=training)
    model._loss_tracker.update_state(loss, sample_weight=len(x))
    return loss, (x, y, outputs, weight)


def _train_step(self: Any, data: Any) -> Any:
    self.zero_grad()
    loss, batch = _loss(self, data, training=True)
    self.optimizer.scale_loss(loss).backward()
    variables = self.trainable_variables
    with torch.no_grad():
        self.optimizer.apply([variable.value.grad for variable in variables], variables)
    return self.compute_metrics(*batch)


def _test_step(self: Any, data: Any) -> Any:
    _, batch = _loss(self, data, training=False)
    return self.compute_metrics(*batch)


def _summed(self: Any) -> Any:
    own = [variable.value.detach().clone() for variable in self.metrics_variables]
    for variable in self.metrics_variables:
        dist.all_reduce(variable.value.detach())
    results = super(TorchTrainer, self).get_metrics_result()
    for variable, value in zip(self.metrics_variables, own, strict=True):
        variable.assign(value)
    return results
