"""A training of three epochs on every rank, with a fault of rank 1 in the second one: FRAMEWORK FAULT FOLDER."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import hvdkit
from hvdkit.job.arrays import sha256
from hvdkit.training.observers import Observer

FRAMEWORK, FAULT, FOLDER = sys.argv[1:]
EPOCHS, STEPS, FAULTY_STEP = 3, 6, 9
HERE = Path()
DATA = np.random.default_rng(0).normal(size=(STEPS * 8, 6)).astype("float32")
LABELS = (DATA[:, 0] > 0).astype("int64")
FROM_OUTSIDE = not FAULT.startswith(
    ("raise", "sys", "os", "hold", "one", "another", "collective", "nan", "temporary", "killed")
)


def net() -> Any:
    if FRAMEWORK == "torch":
        import torch

        return torch.nn.Linear(6, 2)
    import keras

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])


def mark() -> None:
    """Note when the fault happens."""
    (HERE / "begun").touch()


class Faulty(Observer):
    """Does what the name of the fault says, on rank 1 at an update of the second epoch."""

    is_due = False

    def on_fit_begin(self, trainer: Any) -> None:
        (HERE / f"rank-{trainer.world.rank}").write_text(f"{os.getpid()} {os.getppid()}")

    def on_epoch_begin(self, trainer: Any) -> None:
        # Keras's own fit shows no batches
        if FRAMEWORK == "keras" and trainer.epoch == 1 and trainer.world.rank == 1 and FAULT == "raise_before_a_step":
            mark()
            raise ValueError("planted")

    def on_batch(self, trainer: Any, batch: Any) -> None:
        if self.is_due and FAULT == "raise_before_a_step":
            mark()
            raise ValueError("planted")

    def on_step_end(self, trainer: Any) -> None:
        self.is_due = trainer.global_step == FAULTY_STEP and trainer.world.rank == 1
        # slow enough that what is done from outside meets a training that runs
        time.sleep(0.5 if FROM_OUTSIDE and trainer.global_step >= FAULTY_STEP else 0.0)
        if trainer.global_step == FAULTY_STEP and FROM_OUTSIDE:
            (HERE / f"ready-{trainer.world.rank}").touch()
        if trainer.global_step == FAULTY_STEP:
            self._do(trainer.world)

    def on_epoch_end(self, trainer: Any, record: Any) -> None:
        if trainer.epoch == 2 and trainer.world.rank == 1 and FAULT == "raise_at_the_epochs_end":
            mark()
            raise ValueError("planted")

    def _do(self, world: Any) -> None:
        action = getattr(self, f"_{FAULT}", None)
        if action is not None:
            action(world)

    def _raise_after_a_step(self, world: Any) -> None:
        if world.rank == 1:
            mark()
            raise ValueError("planted")

    def _sys_exit(self, world: Any) -> None:
        if world.rank == 1:
            mark()
            sys.exit(3)

    def _os_exit(self, world: Any) -> None:
        if world.rank == 1:
            mark()
            os._exit(4)

    def _hold_the_interpreter(self, world: Any) -> None:
        if world.rank == 1:
            mark()
            ctypes.PyDLL(None).sleep(30)

    def _one_step_less(self, world: Any) -> None:
        if world.rank == 1:
            mark()
            world.shutdown()
            sys.exit(0)

    def _another_shape(self, world: Any) -> None:
        mark()
        world.allreduce([0.0] * (3 + world.rank))

    def _another_order(self, world: Any) -> None:
        mark()
        first, second = (world.barrier, lambda: world.allgather([world.rank]))
        for collective in (first, second) if world.rank == 0 else (second, first):
            collective()

    def _collective_on_rank_0_alone(self, world: Any) -> None:
        if world.rank == 0:
            mark()
            world.barrier()

    def _temporary_folder_gone(self, world: Any) -> None:
        if world.rank == 1:
            shutil.rmtree(os.environ["HVDKIT_FAILURE_DIR"])
            self._raise_after_a_step(world)


FAULTY = Faulty()


def factor() -> Any:
    """Return 1, but on rank 1 in its faulty update."""
    if FAULTY.is_due and FAULT == "raise_in_a_step":
        mark()
        raise ValueError("planted")
    if FAULTY.is_due and FAULT == "nan_on_a_rank":
        mark()
        return np.float32("nan")
    return np.float32(1.0)


def loss() -> Any:
    """Return the cross entropy, times a factor where the fault is in it."""
    if FAULT not in ("raise_in_a_step", "nan_on_a_rank"):
        return "sparse_categorical_crossentropy"
    if FRAMEWORK == "torch":
        import torch

        return lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets) * float(factor())
    import keras
    import tensorflow as tf

    def crossentropy(targets: Any, outputs: Any) -> Any:
        each = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        return each * tf.ensure_shape(tf.numpy_function(factor, [], tf.float32), ())

    return crossentropy


class Rows:
    """A data set of torch's kind, of which one row is broken after the first epoch."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, index: int) -> Any:
        if index == len(DATA) // 2 and list(Path(FOLDER).glob("epoch-*")):
            mark()
            raise ValueError("planted")
        return DATA[index], LABELS[index]


def main() -> None:
    workers = 2 if FAULT == "raise_in_a_worker" else 0
    train = Rows() if workers else (DATA, LABELS)
    # Keras can begin whole epochs only
    every = 1 if FAULT == "killed_at_random" and FRAMEWORK != "keras" else None
    trainer = hvdkit.apply(
        hvdkit.Recipe(
            model=net,
            data=hvdkit.Data(train=train),
            loss=loss(),
            optimizer=hvdkit.SGD(0.1),
            batch_size=4,
            epochs=EPOCHS,
            shard=hvdkit.Shard(workers=workers),
            checkpoint=hvdkit.Checkpoint(FOLDER, keep=9, every_steps=every),
            observers=(FAULTY,),
        ),
        FRAMEWORK,
    )
    trainer.fit()
    if trainer.world.is_root:
        (HERE / "weights").write_text(sha256(trainer.weights()))


if __name__ == "__main__":
    main()
