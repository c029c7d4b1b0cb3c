"""Which GPU a rank takes under Keras, on GPUs that are not there."""

from __future__ import annotations

import pytest
from keras_kinds import EVERYWHERE, ON_HOROVOD, ON_JAX, ON_TENSORFLOW, ON_TORCH
from ranks import launch_fresh, on

from hvdkit.errors import LaunchError

TORCH = on("keras", engines=("serial",), sizes=(1,), env={"KERAS_BACKEND": "torch"})
JAX = on("keras", engines=("serial",), sizes=(1,), env={"KERAS_BACKEND": "jax"})
TENSORFLOW = on("keras", engines=("serial",), sizes=(1,))


def pinned(shown, **options):
    """Pin where each rank is shown these GPUs; return the device or the error, and what was asked of the library."""
    import fake_gpus

    import hvdkit.keras as hk
    from hvdkit.keras_common.compat import library

    with getattr(fake_gpus, library())(shown[hk.init().rank], **options) as taken:
        try:
            return hk.pin(), taken
        except LaunchError as error:
            return str(error), taken


def on_tensorflow(index):
    gpu = f"/physical_device:GPU:{index}"
    return f"GPU:{index}", [gpu, ("growth", gpu, True)]


def on_jax(number):
    return f"cuda:{number}", [("jax_cuda_visible_devices", str(number))]


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_HOROVOD], indirect=True)
def test_f04_tensorflow_shows_each_rank_the_gpu_of_its_local_rank(ranks):
    assert ranks.run(pinned, ["ab", "ab"]) == [on_tensorflow(0), on_tensorflow(1)]
    assert ranks.run(pinned, ["a", "b"]) == [on_tensorflow(0)] * 2


@pytest.mark.parametrize("ranks", ON_TORCH, indirect=True)
def test_f04_keras_on_torch_makes_the_gpu_of_the_local_rank_the_current_one(ranks):
    assert ranks.run(pinned, ["ab", "ab"]) == [("cuda:0", [0]), ("cuda:1", [1])]
    assert ranks.run(pinned, ["a", "b"]) == [("cuda:0", [0])] * 2


@pytest.mark.parametrize("ranks", ON_JAX, indirect=True)
def test_f04_keras_on_jax_shows_each_rank_the_gpu_of_its_local_rank(ranks):
    assert ranks.run(pinned, ["ab", "ab"]) == [on_jax(0), on_jax(1)]
    assert ranks.run(pinned, ["a", "b"]) == [on_jax(0)] * 2


@pytest.mark.parametrize("ranks", [*EVERYWHERE, *ON_HOROVOD], indirect=True)
def test_l08_one_gpu_that_both_ranks_see_is_refused_on_both(ranks):
    for found, _ in ranks.run(pinned, ["a", "a"]):
        assert "share one GPU (ranks 0 and 1 hold" in found
    assert [device for device, _ in ranks.run(pinned, ["", ""])] == ["CPU", "CPU"]


@pytest.mark.parametrize("ranks", ON_JAX, indirect=True)
def test_jax_that_has_started_computes_on_the_gpu_of_the_local_rank(ranks):
    assert ranks.run(pinned, ["ab", "ab"], started=True) == [
        ("cuda:0", [("jax_default_device", "device 0")]),
        ("cuda:1", [("jax_default_device", "device 1")]),
    ]


@pytest.mark.parametrize("ranks", JAX, indirect=True)
def test_jax_takes_a_gpu_where_it_has_a_plugin_and_nobody_wants_it_elsewhere(ranks):
    assert ranks.run(pinned, ["ab"]) == [on_jax(0)]
    for platforms in ("cuda", "gpu,cpu"):
        assert ranks.run(pinned, ["ab"], jax_platforms=platforms) == [on_jax(0)]
    for elsewhere in ({"jax_platforms": "cpu"}, {"jax_platform_name": "cpu"}, {"plugin": "libtpu"}):
        assert ranks.run(pinned, ["ab"], **elsewhere) == [("CPU", [])]


@pytest.mark.parametrize("ranks", JAX, indirect=True)
def test_jax_takes_no_gpu_but_those_that_the_user_allows(ranks):
    assert ranks.run(pinned, ["abc"], jax_cuda_visible_devices="2,1") == [on_jax(1)]
    # as after pin() has been called and JAX has started
    assert ranks.run(pinned, ["abc"], jax_cuda_visible_devices="1", started=True) == [
        ("cuda:1", [("jax_default_device", "device 0")])
    ]
    assert ranks.run(pinned, [""], jax_cuda_visible_devices="0") == [("CPU", [])]


@pytest.mark.processes
@pytest.mark.keras
@pytest.mark.parametrize("_", JAX)
def test_pin_does_not_start_jax(_):
    script = """
import hvdkit.keras as hk
hk.init()
print(hk.default_device(), hk.pin())
from jax._src.xla_bridge import backends_are_initialized
print(backends_are_initialized())
"""
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    assert launch_fresh(script, env=env).stdout.splitlines() == ["CPU CPU", "False"]


@pytest.mark.parametrize("ranks", TORCH, indirect=True)
def test_keras_on_torch_goes_by_the_users_device(ranks):
    def body(device):
        import os
        from unittest import mock

        import fake_gpus

        import hvdkit.keras as hk

        with mock.patch.dict(os.environ, KERAS_TORCH_DEVICE=device), fake_gpus.torch("ab"):
            return hk.default_device(), pinned(["ab"])

    assert ranks.run(body, "cpu") == [("CPU", ("CPU", []))]
    assert ranks.run(body, "cuda") == [("cuda", ("cuda:0", [0]))]
    assert ranks.run(body, "cuda:0") == [("cuda:0", ("cuda:0", [0]))]
    ((default, (found, _)),) = ranks.run(body, "cuda:1")
    assert default == "cuda:1"
    assert found == "KERAS_TORCH_DEVICE is 'cuda:1', but this process takes cuda:0; unset the variable"


@pytest.mark.parametrize("ranks", [*TENSORFLOW, *TORCH, *JAX], indirect=True)
def test_the_device_of_keras_itself_is_its_librarys(ranks):
    def body():
        import fake_gpus

        import hvdkit.keras as hk
        from hvdkit.keras_common.compat import library

        found = []
        for shown in ("", "ab"):
            with getattr(fake_gpus, library())(shown):
                found.append(hk.default_device())
        return library(), found

    ((library, found),) = ranks.run(body)
    assert found == ["CPU", "GPU:0" if library == "tf" else "cuda"]
