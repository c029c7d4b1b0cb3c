"""This rank's batches of data that Keras evaluates."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from hvdkit.job import world as worlds
from hvdkit.keras.fit_batches import check_fit_form, for_fit, refuse_loading, targets_of
from hvdkit.keras.own_batches import refuse_single_use
from hvdkit.keras_common.compat import indexed_dataset, library
from hvdkit.recipe.evaluation import EvaluationPlan
from hvdkit.recipe.trees import of_arrays, samples_of
from hvdkit.training.batches import Sharding
from hvdkit.training.evaluation_batches import Evaluation
from hvdkit.training.same_data import check_same_arrays

_Dataset: Any = indexed_dataset()


class EvaluationArrays(Evaluation, _Dataset):
    """Neutral arrays, or trees of them, one batch per index."""

    def __init__(self, data: Any, plan: EvaluationPlan, rank: int) -> None:
        _Dataset.__init__(self)
        self._tree = of_arrays(np.asarray, data)
        self.samples, self.targets = plan.samples, targets_of(self._tree)
        self._parts = [part.indices for part in plan.micro_batches(rank)]

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> Any:
        """Return one batch."""
        return for_fit(of_arrays(operator.itemgetter(self._parts[index]), self._tree))


def evaluation_batches(data: Any, asked: Sharding) -> Any:
    """Return this rank's part of data, in order, each sample on one rank only; called by all ranks.

    Raises:
        DataError: The data are empty, endless, or not the same on all ranks.
        RecipeError: They cannot be sharded as they are.
    """
    world = worlds.current()
    refuse_single_use(data)
    if library() != "tf":
        refuse_loading(asked)
        check_fit_form(data)
        plan = EvaluationPlan(samples_of(data), asked.batch_size, world.size)
        check_same_arrays(world, data)
        return EvaluationArrays(data, plan, world.rank)
    from hvdkit.keras.fit_dataset import EvaluationDataset
    from hvdkit.keras_common.data import evaluation, tf_datasets

    tf_datasets.refuse_loader_options(asked)
    if tf_datasets.is_dataset(data):
        mine = tf_datasets.take_evaluation(data, world, asked.batch_size)
        return EvaluationDataset(mine, evaluation.samples_in(data))
    check_fit_form(data)
    plan = EvaluationPlan(samples_of(data, " or a tf.data.Dataset"), asked.batch_size, world.size)
    check_same_arrays(world, data)
    parts = list(plan.micro_batches(world.rank))
    batches = tf_datasets.array_batches(for_fit(data), lambda: parts).prefetch(asked.prefetch)
    return EvaluationDataset(batches, plan.samples, targets_of(data))
