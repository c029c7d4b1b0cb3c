"""Channels move one library's tensors over one engine; one small class for each pair that exists."""

from __future__ import annotations

from hvdkit.channels.base import Channel, SerialChannel
from hvdkit.errors import EngineError
from hvdkit.world import World


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
        from hvdkit.channels.torch_horovod import TorchHorovodChannel

        return TorchHorovodChannel(engine)
    if (engine.name, library) == ("torch", "torch"):
        from hvdkit.channels.torch_distributed import TorchDistributedChannel

        return TorchDistributedChannel(engine)
    if (engine.name, library) == ("mpi", "torch"):
        from hvdkit.channels.torch_mpi import TorchMpiChannel

        return TorchMpiChannel(engine)
    if (engine.name, library) == ("horovod", "tf"):
        from hvdkit.channels.tf_horovod import TfHorovodChannel

        return TfHorovodChannel(engine)
    if (engine.name, library) == ("mpi", "tf"):
        from hvdkit.channels.tf_mpi import TfMpiChannel

        return TfMpiChannel(engine)
    if (engine.name, library) == ("mpi", "jax"):
        from hvdkit.channels.jax_mpi import JaxMpiChannel

        return JaxMpiChannel(engine)
    raise EngineError(f"engine {engine.name!r} cannot carry tensors of {library!r}")
