"""What every engine offers on arrays and objects, built from four primitives on flat buffers."""

from __future__ import annotations

import functools
import math
import pickle
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hvdkit.errors import CollectiveError
from hvdkit.process.control import ControlChannel, waiting

OPERATIONS = ("mean", "sum", "min", "max")

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


class Engine(ABC):
    """Collectives over all ranks, on NumPy arrays and Python objects.

    Public methods check that all ranks ask for the same thing, so that a mismatch is an error on every rank instead
    of a hang. An engine supplies the ``_do_*`` primitives on flat buffers.
    """

    name: ClassVar[str]
    rank: int
    size: int
    control: ControlChannel | None = None
    part_bytes: ClassVar[int] = 1 << 30
    # the verb that runs, and what rank 0 alone runs, for messages
    _verb: str = ""
    _alone: str = ""

    @functools.cached_property
    def shared_channels(self) -> dict[str, Any]:
        """The channels that are open already, by library; to open one takes all ranks."""
        return {}

    def allreduce(self, array: ArrayLike, op: str = "mean") -> Array:
        """Reduce an array over all ranks; every rank gets the result.

        Args:
            array: Any shape, the same on all ranks; booleans and integers are reduced as int64, half precision as
                float32, complex numbers by parts.
            op: ``mean`` (always a floating-point result), ``sum``, ``min`` or ``max``.

        Returns:
            An array of the same shape.

        Raises:
            CollectiveError: Shapes, dtypes or operations differ between ranks, or the dtype cannot be reduced.
        """
        value = np.asarray(array)
        self._agree(f"allreduce({op}) of {value.dtype} {value.shape}")
        if op not in OPERATIONS:
            raise CollectiveError(f"reduction {op!r} is unknown; use one of {', '.join(OPERATIONS)}")
        flat = _reducible(value, op)
        if self.size > 1:
            with self.waiting("allreduce"):
                flat = self._do_allreduce(flat, "sum" if op == "mean" else op)
        if op == "mean":
            flat = flat / self.size
        if np.iscomplexobj(value):
            flat = flat.view(np.complex128)
        return flat.astype(_result_dtype(value.dtype, op)).reshape(value.shape)

    def reduce(self, array: ArrayLike, op: str = "mean", root: int = 0) -> Array | None:
        """Reduce an array over all ranks; only ``root`` gets the result, the others None."""
        self._agree(f"reduce to rank {root}")
        self.check_root(root)
        result = self.allreduce(array, op)
        return result if self.rank == root else None

    def allgather(self, array: ArrayLike) -> Array:
        """Concatenate the arrays of all ranks along the first axis; its length may differ between ranks.

        Raises:
            CollectiveError: The other axes or the dtypes differ, or the array is a scalar.
        """
        value = np.asarray(array)
        rest = value.shape[1:]
        self._agree(f"allgather of {value.dtype} {('*', *rest) if value.ndim else 'scalar'}")
        if value.ndim == 0:
            raise CollectiveError("allgather got a scalar; give an array with at least one axis")
        _check_plain(value)
        if self.size == 1:
            return value.copy()
        rows = self._counts(len(value))
        width = value.dtype.itemsize * math.prod(rest)
        joined = self._gather_bytes(value, [number * width for number in rows])
        return joined.view(value.dtype).reshape(sum(rows), *rest)

    def gather(self, array: ArrayLike, root: int = 0) -> list[Array] | None:
        """Collect one array per rank on ``root``; shapes and dtypes may differ. The others get None."""
        self._agree(f"gather to rank {root}")
        self.check_root(root)
        gathered = self.allgather_object(np.asarray(array))
        return gathered if self.rank == root else None

    def scatter(self, arrays: Sequence[ArrayLike] | None, root: int = 0) -> Array:
        """Give every rank its entry of the list that ``root`` passes; the others pass None.

        Raises:
            CollectiveError: The list does not hold one array per rank.
        """
        self._agree(f"scatter from rank {root}")
        self.check_root(root)
        if self.rank == root and (arrays is None or len(arrays) != self.size):
            held = None if arrays is None else len(arrays)
            arrays, problem = None, f"scatter needs one array per rank ({self.size}) on rank {root}, it got {held}"
        else:
            problem = ""
        problem = self.broadcast_object(problem, root)
        if problem:
            raise CollectiveError(problem)
        parts = [pickle.dumps(np.asarray(part)) for part in arrays or []] or [b""] * self.size
        received = self._exchange([np.frombuffer(part, np.uint8) for part in parts])
        result: Array = pickle.loads(received[root].tobytes())
        return result

    def alltoall(self, array: ArrayLike) -> Array:
        """Cut the first axis into ``size`` equal parts, send part r to rank r, and concatenate what arrives.

        Raises:
            CollectiveError: The first axis is not divisible by the number of ranks, or shapes differ between ranks.
        """
        value = np.asarray(array)
        self._agree(f"alltoall of {value.dtype} {value.shape}")
        if value.ndim == 0 or len(value) % self.size:
            raise CollectiveError(
                f"alltoall cannot cut shape {value.shape} into {self.size} parts; "
                "make the first axis divisible by the number of processes"
            )
        _check_plain(value)
        parts = self._exchange([_as_bytes(part) for part in np.split(value, self.size)])
        shape = (len(value) // self.size, *value.shape[1:])
        return np.concatenate([part.view(value.dtype).reshape(shape) for part in parts])

    def broadcast(self, array: ArrayLike, root: int = 0) -> Array:
        """Return the array of ``root`` on every rank.

        Raises:
            CollectiveError: Shapes or dtypes differ between ranks, or there is no such rank.
        """
        value = np.asarray(array)
        self._agree(f"broadcast from rank {root} of {value.dtype} {value.shape}")
        self.check_root(root)
        _check_plain(value)
        if self.size == 1:
            return value.copy()
        with self.waiting("broadcast"):
            received = self._broadcast(_as_bytes(value).copy(), root)
        return received.view(value.dtype).reshape(value.shape)

    def barrier(self) -> None:
        """Wait until every rank has come here."""
        self._agree("barrier")

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        """Return the object of ``root`` on every rank; it must be picklable."""
        self._agree(f"broadcast of an object from rank {root}")
        self.check_root(root)
        if self.size == 1:
            return value
        data = np.frombuffer(pickle.dumps(value), np.uint8) if self.rank == root else np.zeros(0, np.uint8)
        with self.waiting("broadcast of an object"):
            length = self._do_broadcast(np.array([len(data)], np.int64).view(np.uint8), root).view(np.int64)[0]
            buffer = data.copy() if self.rank == root else np.zeros(length, np.uint8)
            return pickle.loads(self._broadcast(buffer, root).data)

    def allgather_object(self, value: Any) -> list[Any]:
        """Return the objects of all ranks, in rank order; they must be picklable."""
        self._agree("allgather of objects")
        if self.size == 1:
            return [value]
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        counts = self._counts(len(data))
        joined = self._gather_bytes(data, counts)
        ends = np.cumsum(counts)
        return [pickle.loads(joined[end - count : end].tobytes()) for count, end in zip(counts, ends, strict=True)]

    def placement(self) -> tuple[int, int, int, int] | None:
        """Return (local rank, local size, node, nodes) where the first collective must wait for step 2, else None."""
        return None

    @abstractmethod
    def shutdown(self) -> None:
        """Leave the job; called by all ranks."""

    @abstractmethod
    def _do_allreduce(self, flat: Array, op: str) -> Array:
        """Reduce a flat int64, float32 or float64 buffer with sum, min or max."""

    @abstractmethod
    def _do_broadcast(self, flat: Bytes, root: int) -> Bytes:
        """Return the bytes of ``root``; the length is the same on all ranks."""

    @abstractmethod
    def _do_allgather(self, flat: Bytes, counts: list[int]) -> Bytes:
        """Concatenate the bytes of all ranks; rank r brings ``counts[r]``."""

    @abstractmethod
    def _do_alltoall(self, flat: Bytes, send: list[int], receive: list[int]) -> Bytes:
        """Send ``send[r]`` bytes to rank r and receive ``receive[r]`` from it, in rank order."""

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Mark a wait for the other ranks, so that the control channel can end one that cannot end."""
        return waiting(self.control, what)

    @contextmanager
    def inside(self, verb: str) -> Iterator[None]:
        """Name the verb whose collectives run inside; of verbs that call each other, the outermost."""
        outer, self._verb = self._verb, self._verb or f"{verb}()"
        try:
            yield
        finally:
            self._verb = outer

    @contextmanager
    def alone(self, section: str) -> Iterator[None]:
        """Refuse collectives inside, which this rank runs without the others."""
        outer, self._alone = self._alone, section
        try:
            yield
        finally:
            self._alone = outer

    def check_root(self, root: int) -> None:
        """Check that a rank is one of this job.

        Raises:
            CollectiveError: There is no such rank.
        """
        if not isinstance(root, int) or not 0 <= root < self.size:
            raise CollectiveError(f"root is {root!r}; the ranks of this job are 0 to {self.size - 1}")

    def _agree(self, signature: str) -> None:
        """Raise on every rank if they are not all about to do the same thing."""
        if self.size == 1:
            return
        signature = f"{self._verb}: {signature}" if self._verb else signature
        if self._alone:
            raise CollectiveError(
                f"{self._verb or signature} is called inside {self._alone}, which runs on rank 0 alone; call it "
                "outside, on all ranks"
            )
        digest = zlib.crc32(signature.encode())
        with self.waiting(signature):
            # the largest and the smallest of all, in 16 bytes on any number of ranks
            highest, lowest = self._do_allreduce(np.array([digest, -digest], np.int64), "max").tolist()
            if highest == -lowest:
                return
            # digests tell long signatures apart
            text = np.frombuffer(f"{digest:08x}{signature}".encode().ljust(200)[:200], np.uint8)
            rows = self._do_allgather(text, [200] * self.size).reshape(self.size, 200)
        other = next(rank for rank in range(self.size) if (rows[rank] != rows[0]).any())
        first, second = (rows[rank].tobytes().decode(errors="replace").rstrip()[8:] for rank in (0, other))
        raise CollectiveError(
            f"ranks disagree: rank 0 asks for {first}, rank {other} for {second}{_advice(first, second)}"
        )

    def _counts(self, count: int) -> list[int]:
        mine = np.array([count], np.int64).view(np.uint8)
        return [int(n) for n in self._do_allgather(mine, [8] * self.size).view(np.int64)]

    def _gather_bytes(self, value: Array, counts: list[int]) -> Bytes:
        with self.waiting("allgather"):
            return self._allgather(_as_bytes(value), counts)

    def _broadcast(self, flat: Bytes, root: int) -> Bytes:
        """Broadcast in parts: MPI counts no more than 2 GiB."""
        if len(flat) <= self.part_bytes:
            return self._do_broadcast(flat, root)
        for start in range(0, len(flat), self.part_bytes):
            part = slice(start, start + self.part_bytes)
            flat[part] = self._do_broadcast(flat[part], root)
        return flat

    def _allgather(self, flat: Bytes, counts: list[int]) -> Bytes:
        """Gather in rounds of parts."""
        if sum(counts) <= self.part_bytes:
            return self._do_allgather(flat, counts)
        joined, starts = np.empty(sum(counts), np.uint8), np.cumsum([0, *counts])
        step = max(1, self.part_bytes // self.size)
        for begin in range(0, max(counts), step):
            parts = [min(step, max(0, count - begin)) for count in counts]
            received = np.split(self._do_allgather(flat[begin : begin + step], parts), np.cumsum(parts)[:-1])
            for start, part in zip(starts, received, strict=False):
                joined[start + begin : start + begin + len(part)] = part
        return joined

    def _exchange(self, parts: list[Bytes]) -> list[Bytes]:
        """Send one buffer to each rank; return what each rank sent here."""
        if self.size == 1:
            return parts
        send = [len(part) for part in parts]
        with self.waiting("alltoall"):
            table = self._do_allgather(np.array(send, np.int64).view(np.uint8), [8 * self.size] * self.size)
            receive = [int(n) for n in table.view(np.int64).reshape(self.size, self.size)[:, self.rank]]
            joined = self._do_alltoall(np.concatenate(parts), send, receive)
        return list(np.split(joined, np.cumsum(receive)[:-1]))


def _advice(first: str, second: str) -> str:
    """Name the verbs that ranks are in, if they are in different ones."""
    verbs = [verb for verb, found, _ in (text.partition("(): ") for text in (first, second)) if found]
    if not verbs or verbs[:1] == verbs[1:]:
        return ""
    return f"; call {' and '.join(f'{verb}()' for verb in verbs)} on all ranks"


def _check_plain(value: Array) -> None:
    if value.dtype.hasobject:
        raise CollectiveError(f"arrays of dtype {value.dtype} cannot be sent; use broadcast_object or allgather_object")


def _as_bytes(array: Array) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _reducible(value: Array, op: str) -> Array:
    """Return a flat copy in a dtype that every engine can reduce."""
    kind = value.dtype.kind
    if kind in "bui":
        return value.reshape(-1).astype(np.int64)
    if kind == "f" and value.dtype.itemsize <= 8:
        return value.reshape(-1).astype(np.float64 if value.dtype.itemsize == 8 else np.float32)
    if kind == "c" and op in ("mean", "sum"):
        return value.reshape(-1).astype(np.complex128).view(np.float64)
    raise CollectiveError(f"arrays of dtype {value.dtype} cannot be reduced with {op!r}; use numbers")


def _result_dtype(dtype: np.dtype[Any], op: str) -> np.dtype[Any]:
    if dtype.kind in "bui":
        return np.dtype(np.float64 if op == "mean" else np.int64)
    return dtype
