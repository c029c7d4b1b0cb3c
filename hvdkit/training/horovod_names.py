"""What stands for the names of Horovod's that people try on a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_WORLD = "world = hk.init() has it: world.{}"
_VERB = "write {}"

# docs/from_horovod.md has the same table, held to this one by a test
REPLACED = {
    "rank": _WORLD.format("rank"),
    "size": _WORLD.format("size"),
    "local_rank": _WORLD.format("local_rank"),
    "local_size": _WORLD.format("local_size"),
    "cross_rank": _WORLD.format("node"),
    "cross_size": _WORLD.format("nodes"),
    "is_initialized": _VERB.format("hk.init(), which may be called again"),
    "shutdown": _WORLD.format("shutdown()"),
    "allreduce": _VERB.format("hk.average(values) for metrics, or world.allreduce(array, 'sum') for an array"),
    "grouped_allreduce": _VERB.format("hk.average({'name': value, ...})"),
    "allreduce_async": _VERB.format("hk.distribute(optimizer, model), which reduces gradients while backward runs"),
    "allgather": _WORLD.format("allgather(array)"),
    "allgather_object": _WORLD.format("engine.allgather_object(value)"),
    "alltoall": _WORLD.format("alltoall(array)"),
    "reducescatter": _WORLD.format("allreduce(array), of which each rank takes its part"),
    "barrier": _WORLD.format("barrier()"),
    "join": _VERB.format("hk.shard(data, batch_size), which gives all ranks the same number of steps"),
    "broadcast_object": _WORLD.format("broadcast_object(value)"),
    "broadcast_parameters": _VERB.format("hk.broadcast(model, optimizer)"),
    "broadcast_optimizer_state": _VERB.format("hk.broadcast(model, optimizer)"),
    "broadcast_variables": _VERB.format("hk.broadcast(model, optimizer)"),
    "broadcast_global_variables": _VERB.format("hk.broadcast(model, optimizer)"),
    "DistributedOptimizer": _VERB.format("hk.distribute(optimizer, model), which returns the same object"),
    "PartialDistributedOptimizer": _VERB.format("hk.distribute(optimizer, model); layers cannot be left out"),
    "DistributedGradientTape": _VERB.format("hk.distribute(optimizer), and leave the tape plain"),
    "Compression": _VERB.format("hk.distribute(optimizer, model, compression='fp16')"),
    "SyncBatchNorm": _VERB.format("hk.distribute(optimizer, model, sync_batchnorm=True) in torch"),
    "Average": "it is what hk.distribute does",
    "Sum": "hk.distribute averages; multiply the loss by world.size",
    "Adasum": _VERB.format("hk.distribute(optimizer, model, reduction='adasum') in torch"),
    "elastic": "hvdkit has no elastic jobs; hvdkit run --max-restarts starts a failed one again, and "
    "hvdkit.Checkpoint(folder) goes on with another number of processes",
    "ProcessSet": "hvdkit has one set of processes, all of them",
    "add_process_set": "hvdkit has one set of processes, all of them",
    "BroadcastGlobalVariablesCallback": _VERB.format("hk.callbacks.BroadcastGlobalVariablesCallback(0) in keras"),
    "MetricAverageCallback": _VERB.format("hk.callbacks.MetricAverageCallback() in keras"),
    "LearningRateWarmupCallback": _VERB.format("hk.callbacks.LearningRateWarmupCallback(...) in keras"),
}


def guide(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a backend, which knows what to write in place of a name of Horovod's."""

    def missing(name: str) -> Any:
        instead = f"; in hvdkit, {REPLACED[name]}" if name in REPLACED else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{instead}")

    return missing
