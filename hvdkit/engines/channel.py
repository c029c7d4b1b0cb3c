"""What a channel offers: sums of flat tensors, and concatenation for sparse gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from hvdkit.engines.base import Engine
from hvdkit.errors import EngineError


class Channel(ABC):
    """Moves the tensors of one library over one engine.

    All ranks start the same reductions in the same order.

    Attributes:
        fp16: Whether half precision can be summed.
        bf16: Whether bfloat16 can be summed.
        recordable: Whether a recorded update can hold its reductions, which then happen on the device alone.
        is_root: Whether this is rank 0.
        kept: What its users keep for as long as it is open.
    """

    fp16 = True
    bf16 = False
    recordable = False

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.size = engine.size
        self.is_root = engine.rank == 0
        self.kept: dict[str, Any] = {}

    @abstractmethod
    def start_allreduce(self, flat: Any) -> Any:
        """Start to sum a flat tensor over all ranks; return a handle for :meth:`wait`."""

    def start_mean(self, flat: Any) -> Any:
        """Start to average a flat floating-point tensor over all ranks, dividing before the sum."""
        flat *= 1.0 / self.size
        return self.start_allreduce(flat)

    @abstractmethod
    def wait(self, handle: Any) -> Any:
        """Return the summed tensor; where the library allows it, in the place of the one that was given."""

    @abstractmethod
    def allgather(self, tensor: Any) -> Any:
        """Concatenate tensors of all ranks along the first axis, whose length may differ."""

    def allreduce(self, flat: Any) -> Any:
        """Sum a flat tensor over all ranks and wait for it."""
        return self.wait(self.start_allreduce(flat))

    def note_replay(self) -> None:  # noqa: B027 - most channels have nothing to follow
        """Note that recorded reductions are under way on the device."""

    def start_adasum(self, flat: Any) -> Any:
        """Start to combine a flat tensor of all ranks by Adasum; offered by those that pass :meth:`check_adasum`."""
        raise NotImplementedError

    def check_compression(self, compression: str) -> None:
        """Check that the engine can sum what a compression sends.

        Raises:
            EngineError: It cannot.
        """
        if compression == "fp16" and not self.fp16:
            raise EngineError(f"engine {self.engine.name!r} cannot sum half precision; use compression='none'")
        if compression == "bf16" and not self.bf16:
            other = "compression='fp16'" if self.fp16 else "compression='none'"
            raise EngineError(f"engine {self.engine.name!r} cannot sum bfloat16 here; use {other}")

    def check_adasum(self) -> None:
        """Check that the engine has Adasum.

        Raises:
            EngineError: It has not.
        """
        raise EngineError(
            f"engine {self.engine.name!r} has no Adasum here; use Horovod built with MPI, started by mpirun, for torch"
        )
