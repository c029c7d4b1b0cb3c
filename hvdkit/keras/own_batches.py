"""Batches that the user's own ``PyDataset`` makes, and models that take batches without targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hvdkit.errors import DataError, RecipeError
from hvdkit.job.random_streams import one_random_state
from hvdkit.job.world import World
from hvdkit.keras.fit_batches import ClassWeight, Observe, as_batch
from hvdkit.keras_common.compat import indexed_dataset, is_keras3, keras
from hvdkit.keras_common.data.weights import NOT_COUNTED, weight_type, with_weights
from hvdkit.recipe.trees import leaves, map_tree
from hvdkit.training.batch import as_pair
from hvdkit.training.batches import Batch, Planned, Sharding
from hvdkit.training.same_data import check_same_data

_Dataset: Any = indexed_dataset()


def refuse_single_use(data: Any) -> None:
    """Refuse Python generators, of which every rank would take another part.

    Raises:
        RecipeError: It is one, or a function.
    """
    if isinstance(data, Iterator) or (callable(data) and not hasattr(data, "__iter__")):
        raise RecipeError(
            f"data of class {type(data).__name__} cannot be sharded in Keras; write a class derived from "
            f"keras.utils.{_Dataset.__name__} whose __getitem__(i) returns batch i, or on TensorFlow give "
            "tf.data.Dataset.from_generator(function, output_signature=...) of single samples"
        )


def own_batches(data: Any, batch_size: int | None, asked: Sharding, world: World) -> Any:
    """Share out the batches of a ``PyDataset``, each to one rank.

    Raises:
        DataError: There are none or too few, or they are not the same on all ranks.
        RecipeError: They have another size than asked for, or an option is not available.
    """
    if asked.workers or asked.pin_memory is True or asked.prefetch != 2 or asked.accumulate > 1:
        raise RecipeError(
            f"Shard.workers, prefetch, pin_memory and accumulate are not available for a {_Dataset.__name__}, which "
            "has its own; leave them out"
        )
    try:
        count = len(data)
    except (TypeError, NotImplementedError) as error:
        raise RecipeError(f"{type(data).__name__} has no __len__; give it one, the number of its batches") from error
    if count < 1:
        raise DataError("the training data are empty; give at least one sample")
    check_same_data(world, count, lambda places: [map_tree(np.asarray, data[place]) for place in places])
    plan = Sharding(1, asked.shuffle, asked.seed, asked.uneven, 1, asked.steps_per_epoch).plan(count, world)
    batches = OwnBatches(data, plan, world.rank)
    inputs, _ = batches.first()
    found = len(next(leaves(inputs)))
    if batch_size not in (None, found):
        raise RecipeError(
            f"{type(data).__name__} gives batches of {found} but {batch_size} is asked for; make them equal (it "
            "is the batch of one process)"
        )
    if is_keras3():
        return batches
    from hvdkit.keras.fit_dataset import from_batches

    return from_batches(batches)


class OwnBatches(Planned, _Dataset):
    """A rank's share of the batches of a ``PyDataset``, in hvdkit's order.

    Attributes:
        targets: None; they are not at hand.
        weighted: Whether batches carry weights.
        observe: Called with each batch that ``fit`` takes for the first time.
    """

    targets: Any = None
    takes_class_weight = False

    def __init__(self, data: Any, plan: Any, rank: int) -> None:
        settings = ("workers", "use_multiprocessing", "max_queue_size")
        _Dataset.__init__(self, **{name: getattr(data, name) for name in settings if hasattr(data, name)})
        Planned.__init__(self, plan, rank)
        self._data = data
        self.observe: Observe | None = None
        self.class_weight: ClassWeight = {}
        self._taken = 0
        # fit looks at some batches before its first epoch, perhaps at all; Keras 2 does not say when one begins
        self._begun = self._begins = not hasattr(_Dataset, "on_epoch_begin")
        self._parts = self.parts()
        # a rank that has no batch left repeats one at weight 0
        self._weighs = plan.uneven == "exact" and plan.samples % plan.size > 0 and plan.limit is None
        first = self._data[0]
        self.weighted = self._weighs or (isinstance(first, tuple) and len(first) == 3)
        if self._weighs:
            as_pair(as_batch(first, 0))

    @property
    def samples(self) -> int | None:
        """Samples are not counted here; batches are."""
        return None

    @property
    def dropped(self) -> int:
        """Samples are not counted here."""
        return 0

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, counted from 0."""
        if epoch != self.epoch:
            Planned.set_epoch(self, epoch)
            self._parts = self.parts()
            self._taken = 0

    def on_epoch_begin(self) -> None:
        """Note that what follows is no look at the data."""
        self._begun = True

    def on_epoch_end(self) -> None:
        """Go on to the next epoch, if this one was taken to its end; what the user's own does is alike on all ranks."""
        if self._begun and self._taken == len(self):
            with one_random_state(self.plan.seed * 1_000_003 + self.epoch):
                self._data.on_epoch_end()
            self.set_epoch(self.epoch + 1)
        self._begun = self._begins

    def first(self) -> tuple[Any, Any]:
        """Return inputs and targets of the first batch, or ``NO_TARGETS``, without taking it."""
        inputs, targets = as_batch(self._data[0], 0)
        return inputs, targets

    def __getitem__(self, index: int) -> Any:
        """Return a batch as the user's class makes it, with weights if a rank may have none left."""
        part = self._parts[index]
        tree = self._data[int(part.indices[0])]
        batch = self._counted(tree, part.count, index)
        if index >= self._taken:
            self._taken = index + 1
            if self.observe is not None:
                self.observe(batch)
        if not self._weighs:
            return tree
        length = len(next(leaves(batch.inputs)))
        return with_weights(tree, np.full(length, 1.0 if part.count else NOT_COUNTED, weight_type()))

    def _counted(self, tree: Any, count: int, index: int) -> Batch:
        batch = as_batch(tree, count, epoch=self.epoch, number=index)
        return as_batch(tree, count * len(next(leaves(batch.inputs))), epoch=self.epoch, number=index)


def check_own_step(model: Any, inputs: Any) -> None:
    """Check that a model can train on batches without targets, and build it if it can be called.

    Raises:
        RecipeError: It has no ``train_step`` of its own, so that Keras's would take a loss of targets.
    """
    base = keras().Model
    if type(model).train_step is base.train_step:
        raise RecipeError(
            "the data have no targets, which Keras's train_step takes the loss of; give Data(train=(x, y)), for an "
            "autoencoder (x, x), or a model with a train_step of its own"
        )
    if type(model).call is not base.call:
        model(map_tree(lambda part: part[:64], inputs))
