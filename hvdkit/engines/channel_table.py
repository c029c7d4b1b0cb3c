"""Channels move one library's tensors over one engine; one small class for each pair that exists."""

from __future__ import annotations

from hvdkit.engines.channel import Channel, SerialChannel
from hvdkit.errors import EngineError
from hvdkit.job.world import World


def open_channel(world: World, library: str) -> Channel:
    """Return the channel for the tensors of ``library`` over the world's engine.

    Args:
        world: The job.
        library: ``torch``, ``tf`` or ``jax``.

    Raises:
        EngineError: There is no such channel.
    """
    engine = world.engine
    if world.size == 1:
        return SerialChannel()
    if (engine.name, library) == ("horovod", "torch"):
        from hvdkit.engines.horovod.torch_channel import TorchHorovodChannel

        return TorchHorovodChannel(engine)
    if (engine.name, library) == ("torch", "torch"):
        from hvdkit.engines.torch_distributed.torch_channel import TorchDistributedChannel

        return TorchDistributedChannel(engine)
    if (engine.name, library) == ("mpi", "torch"):
        from hvdkit.engines.mpi.torch_channel import TorchMpiChannel

        return TorchMpiChannel(engine)
    if (engine.name, library) == ("horovod", "tf"):
        from hvdkit.engines.horovod.tf_channel import TfHorovodChannel

        return TfHorovodChannel(engine)
    if (engine.name, library) == ("mpi", "tf"):
        from hvdkit.engines.mpi.tf_channel import TfMpiChannel

        return TfMpiChannel(engine)
    if (engine.name, library) == ("mpi", "jax"):
        from hvdkit.engines.mpi.jax_channel import JaxMpiChannel

        return JaxMpiChannel(engine)
    raise EngineError(f"engine {engine.name!r} cannot carry tensors of {library!r}")
