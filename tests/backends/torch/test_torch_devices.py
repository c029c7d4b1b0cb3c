"""Which GPU a rank takes in torch, on GPUs that are not there."""

from __future__ import annotations

import pytest
from ranks import on

from hvdkit.errors import LaunchError

TWO = on("torch", engines=("torch", "mpi"))
ALONE = on("torch", engines=("serial",), sizes=(1,))


def pinned(shown):
    """Pin where each rank is shown these GPUs; return the device or the error, and the GPUs that torch was given."""
    import fake_gpus

    import hvdkit.torch as hk

    with fake_gpus.torch(shown[hk.init().rank]) as taken:
        try:
            return hk.pin(), taken
        except LaunchError as error:
            return str(error), taken


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_f04_ranks_take_the_gpu_of_their_local_rank_or_the_one_that_each_is_shown(ranks):
    assert ranks.run(pinned, ["ab", "ab"]) == [("cuda:0", [0]), ("cuda:1", [1])]
    assert ranks.run(pinned, ["a", "b"]) == [("cuda:0", [0]), ("cuda:0", [0])]
    assert ranks.run(pinned, ["", ""]) == [("cpu", []), ("cpu", [])]


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_l08_one_gpu_that_both_ranks_see_is_refused_on_both(ranks):
    for found, _ in ranks.run(pinned, ["a", "a"]):
        assert "share one GPU (ranks 0 and 1 hold GPU-a); start at most 1 per node" in found


@pytest.mark.parametrize("ranks", TWO, indirect=True)
def test_l08_gpus_that_torch_does_not_tell_apart_are_not_compared(ranks):
    assert ranks.run(pinned, [[""], [""]]) == [("cuda:0", [0]), ("cuda:0", [0])]


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_one_process_takes_the_first_gpu(ranks):
    assert ranks.run(pinned, ["ab"]) == [("cuda:0", [0])]
