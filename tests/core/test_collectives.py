"""Collectives on arrays and objects against NumPy, on every engine that is here."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on

SEVERAL = [*on("core", engines=("mpi",), sizes=(2, 3)), *on("core", engines=("horovod", "torch"))]
EVERYWHERE = [*on("core", engines=("serial", "mpi"), sizes=(1,)), *SEVERAL]
DTYPES = ("bool", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
SHAPES = ((), (0,), (1,), (5,), (2, 3), (3, 0), (2, 1, 4))


def world():
    from hvdkit.job.world import current

    return current()


def sample(dtype, shape, rank):
    """Small whole numbers, so that every sum is exact; the same on whoever asks."""
    values = np.random.default_rng([rank, len(shape)]).integers(0, 7, shape)
    return (values + 2j * values if dtype.startswith("complex") else values).astype(dtype)


def complaint(call, *args):
    """Return class and text of hvdkit's error, for comparison over ranks."""
    from hvdkit.errors import HvdkitError

    try:
        call(*args)
    except HvdkitError as error:
        return type(error).__name__, str(error)
    return "none", ""


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_allreduce_equals_numpy_for_every_operation_dtype_and_shape(ranks):
    cases = [
        (dtype, shape, op)
        for dtype in DTYPES
        for shape in SHAPES
        for op in ("mean", "sum", "min", "max")
        if not (dtype.startswith("complex") and op in ("min", "max"))
    ]

    def body():
        return [world().allreduce(sample(dtype, shape, world().rank), op) for dtype, shape, op in cases]

    reduce = {"mean": np.mean, "sum": np.sum, "min": np.min, "max": np.max}
    for results in ranks.run(body):
        for (dtype, shape, op), result in zip(cases, results, strict=True):
            stack = np.stack([sample(dtype, shape, rank) for rank in range(ranks.size)])
            wide = stack.astype("complex128" if dtype.startswith("complex") else "float64")
            whole = dtype in ("bool", "uint8", "int32", "int64")
            kind = ("float64" if op == "mean" else "int64") if whole else dtype
            assert result.shape == shape
            assert result.dtype == kind, (dtype, op)
            # sums are exact; the division by three rounds
            rounding = 2 * np.finfo(kind).eps if op == "mean" else 0
            np.testing.assert_allclose(result, reduce[op](wide, axis=0).astype(kind), rtol=rounding)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_gathering_and_sending_keep_every_dtype_and_unequal_lengths(ranks):
    kinds = (*DTYPES, "datetime64[s]", "U3")

    def body():
        rank, size = world().rank, world().size
        own = {kind: np.arange(2 * rank, 5 * rank).astype("int64").astype(kind) for kind in kinds}
        square = {kind: np.arange(2 * size).reshape(2 * size, 1).astype("int64").astype(kind) for kind in kinds}
        return {
            "allgather": {kind: world().allgather(value) for kind, value in own.items()},
            "broadcast": {kind: world().broadcast(value, size - 1) for kind, value in square.items()},
            "alltoall": {kind: world().alltoall(value) for kind, value in square.items()},
            "wide": world().allgather(np.full((rank, 3), rank)),
            "flat": world().allgather(np.zeros((rank + 1, 0))),
        }

    for rank, result in enumerate(ranks.run(body)):
        size = ranks.size
        for kind in kinds:
            parts = [np.arange(2 * other, 5 * other).astype("int64").astype(kind) for other in range(size)]
            np.testing.assert_array_equal(result["allgather"][kind], np.concatenate(parts))
            square = np.arange(2 * size).reshape(2 * size, 1).astype("int64").astype(kind)
            np.testing.assert_array_equal(result["broadcast"][kind], square)
            mine = np.concatenate([square[2 * rank : 2 * rank + 2]] * size)
            np.testing.assert_array_equal(result["alltoall"][kind], mine)
            assert result["alltoall"][kind].dtype == square.dtype
        np.testing.assert_array_equal(result["wide"], np.concatenate([np.full((r, 3), r) for r in range(size)]))
        assert result["flat"].shape == (sum(range(1, size + 1)), 0)


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_broadcast_takes_the_values_of_its_root_and_leaves_the_argument_alone(ranks):
    def body(root):
        own = np.full(4, float(world().rank))
        received = world().broadcast(own, root)
        received += 100
        return own, received

    for root in range(ranks.size):
        for rank, (own, received) in enumerate(ranks.run(body, root)):
            assert own.tolist() == [rank] * 4
            assert received.tolist() == [root + 100.0] * 4


@pytest.mark.parametrize("ranks", SEVERAL, indirect=True)
def test_what_is_larger_than_a_part_is_sent_in_parts(ranks):
    def body():
        from hvdkit.engines.base import Engine

        here, rest = world(), np.arange(1001, dtype=np.int32)
        usual, Engine.part_bytes = Engine.part_bytes, 1000
        try:
            sent = here.broadcast(rest + here.rank, root=1).tolist()
            told = here.broadcast_object({"a": b"x" * 5000, "rank": here.rank}, root=1)
            rows = here.allgather(rest[: 300 * here.rank] + here.rank).tolist()
            said = [len(text) for text in here.engine.allgather_object("y" * 2000 * here.rank)]
        finally:
            Engine.part_bytes = usual
        return sent, (len(told["a"]), told["rank"]), rows, said

    size = ranks.combination.size
    rows = [value + rank for rank in range(size) for value in range(300 * rank)]
    said = [2000 * rank for rank in range(size)]
    for sent, told, joined, lengths in ranks.run(body):
        assert sent == list(range(1, 1002))
        assert told == (5000, 1)
        assert joined == rows
        assert lengths == said


@pytest.mark.slow
@pytest.mark.parametrize("ranks", on("core", engines=("mpi", "torch"), sizes=(2,)), indirect=True)
def test_two_and_a_half_gibibytes_reach_every_rank(ranks):
    def body():
        here, length = world(), 5 << 29
        received = here.broadcast(np.full(length, 1 + here.rank, np.uint8), root=1)
        return len(received), int(received[0]), int(received[-1]), bool((received == 2).all())

    assert ranks.run(body) == [(5 << 29, 2, 2, True)] * 2


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_reduce_gather_and_scatter_serve_the_root(ranks):
    def body(root):
        rank, size = world().rank, world().size
        return (
            world().reduce(np.full(3, rank + 1), "sum", root),
            world().gather(np.arange(rank), root),
            world().scatter([np.full(r, r, np.float32) for r in range(size)] if rank == root else None, root),
        )

    for root in range(ranks.size):
        for rank, (reduced, gathered, scattered) in enumerate(ranks.run(body, root)):
            np.testing.assert_array_equal(scattered, np.full(rank, rank, np.float32))
            if rank != root:
                assert reduced is None
                assert gathered is None
                continue
            assert reduced.tolist() == [sum(range(1, ranks.size + 1))] * 3
            assert [part.tolist() for part in gathered] == [list(range(r)) for r in range(ranks.size)]


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_objects_and_common_decisions(ranks):
    def body():
        rank, size = world().rank, world().size
        world().barrier()
        return (
            world().broadcast_object({"rank": rank, "big": "x" * 70000}, size - 1)["rank"],
            world().engine.allgather_object([rank] * rank),
            world().agree(rank == 0),
            world().root_only(lambda: f"written by {rank}"),
        )

    everybody = [[rank] * rank for rank in range(ranks.size)]
    assert ranks.run(body) == [(ranks.size - 1, everybody, True, "written by 0")] * ranks.size


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_what_fails_on_rank_0_alone_is_raised_everywhere(ranks):
    def body():
        from hvdkit.errors import CheckpointError

        def write():
            raise CheckpointError("disk full")

        return complaint(world().root_only, write)

    assert ranks.run(body) == [("CheckpointError", "disk full")] * ranks.size


@pytest.mark.parametrize("ranks", SEVERAL, indirect=True)
def test_c08_what_differs_between_ranks_is_one_error_on_all(ranks):
    def body():
        rank, size, job = world().rank, world().size, world()
        last = rank == size - 1
        return [
            complaint(job.allreduce, np.zeros(4 if last else 3)),
            complaint(job.allreduce, np.zeros(3, "float32" if last else "float64")),
            complaint(job.allreduce, np.zeros(3), "max" if last else "sum"),
            complaint(job.allgather, np.zeros((2, 4 if last else 3))),
            complaint(job.allgather, 1.0 if last else np.zeros(1)),
            complaint(job.broadcast, np.zeros(3), size - 1 if last else 0),
            complaint(job.alltoall, np.zeros(2 * size + last)),
            complaint(job.barrier) if last else complaint(job.allreduce, 1.0),
            complaint(job.agree, 1) if last else complaint(job.barrier),
        ]

    first, *others = ranks.run(body)
    assert all(other == first for other in others)
    assert [kind for kind, _ in first] == ["CollectiveError"] * 9
    last = ranks.size - 1
    assert first[0][1] == (
        f"ranks disagree: rank 0 asks for allreduce(mean) of float64 (3,), rank {last} for "
        "allreduce(mean) of float64 (4,)"
    )
    assert ranks.run(lambda: float(world().allreduce(1.0, "sum"))) == [float(ranks.size)] * ranks.size


@pytest.mark.parametrize("ranks", EVERYWHERE, indirect=True)
def test_wrong_arguments_name_what_is_allowed(ranks):
    def body():
        job = world()
        return [
            complaint(job.allreduce, 1.0, "median")[1],
            complaint(job.allreduce, np.array(["a"]))[1],
            complaint(job.allgather, 1.0)[1],
            complaint(job.broadcast, 1.0, job.size)[1],
            complaint(job.scatter, [1.0] * (job.size + 1))[1],
            complaint(job.allgather, np.array([None]))[1],
            complaint(job.alltoall, 1.0)[1],
        ]

    for texts in ranks.run(body):
        expected = (
            "mean, sum, min, max",
            "<U1",
            "scalar",
            f"0 to {ranks.size - 1}",
            "one array per rank",
            "object",
            "cut",
        )
        for text, part in zip(texts, expected, strict=True):
            assert part in text


@pytest.mark.parametrize("call", ["allreduce", "barrier", "average", "nested"])
@pytest.mark.parametrize("ranks", SEVERAL, indirect=True)
def test_r41_a_collective_inside_what_rank_0_runs_alone_is_refused_by_the_sections_name(ranks, call):
    def body():
        from hvdkit.training import verbs

        def look_for_files():
            if call == "nested":
                return world().root_only(lambda: 1)
            return {"average": lambda: verbs.average(1.0), "barrier": world().barrier}.get(
                call, lambda: world().allreduce(1.0)
            )()

        # what follows pairs up again
        return complaint(world().root_only, look_for_files), float(world().allreduce(world().rank, "sum"))

    for (kind, text), total in ranks.run(body):
        assert kind == "CollectiveError"
        assert "inside root_only(look_for_files), which runs on rank 0 alone" in text
        assert call != "average" or text.startswith("average()")
        assert total == sum(range(ranks.size))


@pytest.mark.parametrize("ranks", on("core", engines=("mpi", "torch")), indirect=True)
def test_r41_a_verb_that_one_rank_alone_calls_is_named(ranks):
    def body():
        from hvdkit.training import verbs

        if world().rank == 0:
            return complaint(verbs.average, 1.0)
        return complaint(world().barrier)

    for kind, text in ranks.run(body):
        assert kind == "CollectiveError"
        assert "rank 0 asks for average(): " in text
        assert "on all ranks" in text
