"""What a recipe may ask for that only one framework serves; said before anything is started."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import RecipeError
from hvdkit.recipe.declaration import Recipe
from hvdkit.recipe.steps import Distribute

_TORCH_ONLY = ("gradient_predivide", "reduction", "sync_batchnorm")
_REASONS = {
    "Distribute.sync_batchnorm": "Keras's BatchNormalization synchronises over tf.distribute alone",
    "Distribute.gradient_predivide": "Keras's gradients are divided by the number of processes before the sum",
    "Distribute.reduction": "Adasum needs each gradient by itself, and Keras's travel together",
    "Distribute.compression": "its gradients are sent as float32 or in half precision",
    "Recipe.compile": "Keras compiles the training step by itself, but for XLA on TensorFlow, which cannot compile the "
    "reduction of gradients",
}


def check_served(recipe: Recipe, framework: str) -> None:
    """Refuse what a framework does not serve.

    Raises:
        RecipeError: The message names the field and the reason.
    """
    if framework == "torch":
        return
    asked = {"Recipe.compile": recipe.compile}
    for name in _TORCH_ONLY:
        given = getattr(recipe.distribute, name, getattr(Distribute, name))
        asked[f"Distribute.{name}"] = given != getattr(Distribute, name)
    asked["Distribute.compression"] = getattr(recipe.distribute, "compression", "none") == "bf16"
    for name, reason in _REASONS.items():
        if asked[name]:
            value = "='bf16'" if name == "Distribute.compression" else ""
            raise RecipeError(f"{name}{value} is not served by {framework}: {reason}; leave it out or use 'torch'")


def torch_only(settings: Distribute, framework: str) -> dict[str, Any]:
    """Return those arguments of ``distribute`` that only torch takes."""
    return {name: getattr(settings, name) for name in _TORCH_ONLY} if framework == "torch" else {}
