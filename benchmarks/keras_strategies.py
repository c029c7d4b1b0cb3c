"""TensorFlow's own ways to train Keras on several processes or devices, for ``benchmarks.keras``.

``MirroredStrategy`` is one process with several devices, so it runs as a child of rank 0: each line that the child
reads is answered with a line when an epoch is over.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import tensorflow as tf

from benchmarks.keras_methods import Run, batches, compiled_model
from benchmarks.ports import free_port


def epoch_of(strategy: Any, batch: int, steps: int) -> Run:
    """Return an epoch of ``fit`` in which each replica takes its own batches."""
    with strategy.scope():
        model = compiled_model()
    data = strategy.distribute_datasets_from_function(lambda _: batches(batch, steps).repeat())
    return lambda: model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0) and None


def multi_worker(world: Any) -> Any:
    """Return ``MultiWorkerMirroredStrategy`` over all ranks; it must be made before TensorFlow's first operation."""
    port = free_port()
    workers = [f"127.0.0.1:{world.broadcast_object(port, rank)}" for rank in range(world.size)]
    cluster = tf.train.ClusterSpec({"worker": workers})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=world.rank, rpc_layer="grpc"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


def mirrored(replicas: int, batch: int, steps: int) -> Run:
    """Start the child and return what asks it for an epoch."""
    command = [sys.executable, "-m", __name__, str(replicas), str(batch), str(steps)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def epoch() -> None:
        print(file=child.stdin, flush=True)
        if not child.stdout.readline():  # type: ignore[union-attr]
            raise RuntimeError("the process of MirroredStrategy has ended")

    return epoch


def serve(replicas: int, batch: int, steps: int) -> None:
    """Run an epoch under ``MirroredStrategy`` for each line."""
    # the rank's own thread settings are for one of several processes; this one has the whole machine
    tf.config.threading.set_intra_op_parallelism_threads(replicas)
    tf.config.threading.set_inter_op_parallelism_threads(replicas)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
    epoch = epoch_of(strategy, batch, steps)
    for _ in sys.stdin:
        epoch()
        print("done", flush=True)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:]))
