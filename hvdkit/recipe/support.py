"""What a recipe may ask for that only one framework serves; said before anything is started."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.steps import Distribute, Shard

_TORCH_ONLY: dict[type, tuple[str, ...]] = {
    Distribute: ("gradient_predivide", "reduction", "sync_batchnorm"),
    Shard: ("on_device",),
}
_REASONS = {
    "Distribute.sync_batchnorm": "Keras's BatchNormalization synchronises over tf.distribute alone",
    "Distribute.gradient_predivide": "Keras's gradients are divided by the number of processes before the sum",
    "Distribute.reduction": "Keras's gradients travel together, as an average",
    "Recipe.scheduler": "in Keras a schedule object is the optimizer's learning rate, as in "
    "optimizer=lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 1000))",
    "Recipe.compile": "Keras compiles the training step by itself, but for XLA on TensorFlow, which cannot compile the "
    "reduction of gradients",
    "Recipe.cuda_graphs": "Keras and TensorFlow give the GPU its work in their own way",
    "Shard.on_device": "Keras and TensorFlow bring batches to the device in their own way",
}


def check_served(recipe: Recipe, framework: str) -> None:
    """Refuse what a framework does not serve.

    Raises:
        RecipeError: The message names the field and the reason.
    """
    if framework == "torch":
        return
    asked = {
        "Recipe.compile": recipe.compile,
        "Recipe.cuda_graphs": recipe.cuda_graphs is True,
        "Recipe.scheduler": recipe.scheduler is not None,
        "Shard.on_device": recipe.shard is not None and recipe.shard.on_device is True,
    }
    for name in _TORCH_ONLY[Distribute]:
        given = getattr(recipe.distribute, name, getattr(Distribute, name))
        asked[f"Distribute.{name}"] = given != getattr(Distribute, name)
    for name, reason in _REASONS.items():
        if asked[name]:
            raise RecipeError(f"{name} is not served by {framework}: {reason}; leave it out or use 'torch'")
    if recipe.distribute is not None:
        check_keras_compression(recipe.distribute.compression)


def check_keras_compression(compression: str) -> None:
    """Refuse what Keras's gradients cannot be sent in.

    Raises:
        RecipeError: It is ``bf16``.
    """
    if compression == "bf16":
        raise RecipeError(
            "compression='bf16' is not served by tf and keras: their gradients are sent as float32 or in half "
            "precision; leave it out or use 'torch'"
        )


def torch_only(settings: Distribute | Shard, framework: str) -> dict[str, Any]:
    """Return those arguments of ``distribute`` or ``shard`` that only torch takes."""
    names = _TORCH_ONLY[type(settings)] if framework == "torch" else ()
    return {name: getattr(settings, name) for name in names}
