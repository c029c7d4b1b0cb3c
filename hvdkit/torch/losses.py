"""What losses are known by: whether they take logits, and what their mean is taken over."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from hvdkit.training.checks import CATEGORICAL, LOGITS, PROBABILITIES

_KINDS = {
    functional.cross_entropy: CATEGORICAL,
    functional.binary_cross_entropy_with_logits: LOGITS,
    functional.binary_cross_entropy: PROBABILITIES,
    torch.nn.CrossEntropyLoss: CATEGORICAL,
    torch.nn.BCEWithLogitsLoss: LOGITS,
    torch.nn.BCELoss: PROBABILITIES,
}


def kind_of(loss: Any) -> str | None:
    """Return what kind of outputs and targets a loss is for; None if it is not known."""
    return _KINDS.get(loss if loss in _KINDS else type(loss))


def divisor(loss: Any, targets: Any, count: int) -> Any:
    """Return what the mean of a batch was divided by: its samples, or the weights of the classes that count."""
    if not isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss)) or targets.is_floating_point():
        return count
    counted = targets[targets != loss.ignore_index]
    return counted.numel() if loss.weight is None else loss.weight[counted].sum().item()
