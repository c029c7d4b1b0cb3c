"""What one framework alone serves is refused in the others, by name and before anything is imported or started."""

from __future__ import annotations

import pytest

import hvdkit

ASKED = {
    "Distribute.sync_batchnorm": {"distribute": hvdkit.Distribute(sync_batchnorm=True)},
    "Distribute.gradient_predivide": {"distribute": hvdkit.Distribute(gradient_predivide=2.0)},
    "Distribute.reduction": {"distribute": hvdkit.Distribute(reduction="adasum")},
    "Recipe.compile": {"compile": True},
    "Recipe.cuda_graphs": {"cuda_graphs": True},
    "Shard.on_device": {"shard": hvdkit.Shard(on_device=True)},
}


@pytest.mark.parametrize("framework", ["tf", "keras"])
@pytest.mark.parametrize("name", ASKED)
def test_a_field_that_a_framework_does_not_serve_is_refused_with_the_reason(name, framework):
    recipe = hvdkit.Recipe(model="mnist_cnn", data=lambda: 1 / 0, optimizer=hvdkit.SGD(), **ASKED[name])
    with pytest.raises(hvdkit.errors.RecipeError) as caught:
        hvdkit.apply(recipe, framework=framework)
    assert str(caught.value).startswith(f"{name} is not served by {framework}: ")
    assert str(caught.value).endswith("; leave it out or use 'torch'")


@pytest.mark.parametrize("framework", ["tf", "keras"])
def test_a_compression_that_keras_cannot_send_is_refused(framework):
    distribute = hvdkit.Distribute(compression="bf16")
    recipe = hvdkit.Recipe(model="mnist_cnn", data=lambda: 1 / 0, optimizer=hvdkit.SGD(), distribute=distribute)
    with pytest.raises(hvdkit.errors.RecipeError, match=r"compression='bf16' is not served by tf and keras: .*'torch'"):
        hvdkit.apply(recipe, framework=framework)


WRONG = {
    "compression": ("fp8", "one of none, fp16, bf16"),
    "gradient_predivide": (0, "a number > 0 or None"),
    "reduction": ("median", "one of average, sum, adasum"),
    "sync_batchnorm": (1, "True or False"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_of_step_5_are_refused_when_they_are_made(name):
    value, allowed = WRONG[name]
    with pytest.raises(hvdkit.errors.RecipeError, match=f"Distribute.{name} is {value!r}; it must be {allowed}"):
        hvdkit.Distribute(**{name: value})


def test_adasum_goes_without_compression_and_predivision():
    for other in ({"compression": "fp16"}, {"gradient_predivide": 2.0}):
        with pytest.raises(hvdkit.errors.RecipeError, match="average where compression or gradient_predivide is set"):
            hvdkit.Distribute(reduction="adasum", **other)


def test_precision_and_compile_are_checked():
    common = {"model": "mnist_cnn", "data": lambda: 1, "optimizer": hvdkit.SGD()}
    with pytest.raises(hvdkit.errors.RecipeError, match=r"precision is 'O2'; it must be one of fp32, bf16, fp16"):
        hvdkit.Recipe(**common, precision="O2")
    with pytest.raises(hvdkit.errors.RecipeError, match=r"compile is 'yes'; it must be True or False"):
        hvdkit.Recipe(**common, compile="yes")
