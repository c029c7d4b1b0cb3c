"""What N processes must compute: one process in float64 NumPy on the whole global batch.

Nothing of hvdkit's arithmetic is used: order of the samples, ends of epochs, learning rates and clipping are written
anew from their definitions.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy_models import Array, Arrays, initial, loss_and_gradients, samples
from numpy_optimizers import l2_decay, rule_for

import hvdkit

BATCH, SEED, LEAST_UPDATES = 4, 11, 20


@dataclass(frozen=True)
class Case:
    """A recipe in a few words; ``samples`` leave a short batch at the end of an epoch, on 1, 2 and 3 processes."""

    model: str
    optimizer: hvdkit.recipe.optimizers.Optimizer
    accumulate: int = 1
    clip: float | None = None
    scaling: str = "linear"
    warmup: float = 0.0
    uneven: str = "exact"
    samples: int = 37
    sparse: bool = False

    def updates_per_epoch(self, size: int) -> int:
        """Return the updates of an epoch on ``size`` processes."""
        updates = self.samples / self.global_batch(size)
        return math.floor(updates) if self.uneven == "drop" else math.ceil(updates)

    def global_batch(self, size: int) -> int:
        """Return the samples of a full update."""
        return BATCH * size * self.accumulate

    def epochs(self, size: int) -> int:
        """Return the epochs that make 20 updates or more."""
        return math.ceil(LEAST_UPDATES / self.updates_per_epoch(size))

    def rate(self, step: int, size: int) -> float:
        """Return the learning rate of an update, counted from 0."""
        ratio = size * self.accumulate
        base = self.optimizer.lr
        target = base * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1}[self.scaling]
        steps = round(self.warmup * self.updates_per_epoch(size))
        return base + (target - base) * (step + 1) / steps if step < steps else target

    def recipe(self, **changes: Any) -> hvdkit.Recipe:
        """Return the recipe; ``changes`` give it a model."""
        dtype = changes.pop("dtype", "float64")
        x, y = samples(self.model, self.samples)
        return hvdkit.Recipe(
            data=hvdkit.Data(train=(x if self.model == "embedding" else x.astype(dtype), y)),
            optimizer=self.optimizer,
            batch_size=BATCH,
            seed=SEED,
            shard=hvdkit.Shard(uneven=self.uneven),
            scale_lr=hvdkit.ScaleLR(self.scaling, warmup_epochs=self.warmup),
            distribute=hvdkit.Distribute(accumulate=self.accumulate, clip_norm=self.clip),
            **changes,
        )


def train(case: Case, size: int, form: str) -> Arrays:
    """Return the weights that ``size`` processes must have in the end."""
    weights = initial(case.model)
    rules = {name: rule_for(case.optimizer, value.shape, form) for name, value in weights.items()}
    decay = l2_decay(case.optimizer)
    x, y = samples(case.model, case.samples)
    for step, rows in enumerate(blocks(case, size)):
        _, gradients = loss_and_gradients(weights, x[rows], y[rows])
        gradients = clipped(gradients, case.clip)
        lr = case.rate(step, size)
        for name, rule in rules.items():
            weights[name] = rule.update(weights[name], gradients[name] + decay * weights[name], lr)
    return weights


def blocks(case: Case, size: int) -> Iterator[Array]:
    """Yield the samples of every update.

    The mean over a block is the mean over ranks and passes, each weighted by its samples, also where the last block of
    an epoch fills fewer passes.
    """
    group = case.global_batch(size)
    for epoch in range(case.epochs(size)):
        order = np.random.Generator(np.random.PCG64(np.random.SeedSequence([SEED, epoch]))).permutation(case.samples)
        for start in range(0, case.samples, group):
            block = order[start : start + group]
            if len(block) < group and case.uneven == "drop":
                continue
            yield np.resize(block, -(-len(block) // size) * size) if case.uneven == "pad" else block


def clipped(gradients: Arrays, limit: float | None) -> Arrays:
    """Scale gradients by min(1, limit / norm), the norm taken over all of them."""
    if limit is None:
        return gradients
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients.values()))
    return {name: gradient * min(1.0, limit / norm) for name, gradient in gradients.items()}


def distance(found: Arrays, expected: Arrays, before: Arrays) -> float:
    """Return how far two trained models are apart, in units of what training changed."""
    assert found.keys() == expected.keys() == before.keys()

    def norm(first: Arrays, second: Arrays) -> float:
        return math.sqrt(sum(float(((first[name] - second[name]) ** 2).sum()) for name in first))

    return norm(found, expected) / norm(expected, before)


def variants(case: Case) -> dict[str, Case]:
    """Return cases that differ in one thing, each of which must move the weights out of the band."""
    changed = {
        "rate": {"scaling": "none"},
        "warm-up": {"warmup": 0.0},
        "clipping": {"clip": None},
        "passes": {"accumulate": 1},
        "ends": {"uneven": "drop" if case.uneven == "exact" else "exact"},
        "decay": {"optimizer": dataclasses.replace(case.optimizer, weight_decay=0.0)},
    }
    found = {name: dataclasses.replace(case, **change) for name, change in changed.items()}
    return {name: variant for name, variant in found.items() if variant != case}
