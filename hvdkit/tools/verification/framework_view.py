"""What the tool needs to know about a framework; one class for torch, one for the two on Keras models."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.tools.verification.reference import Reference
from hvdkit.tools.verification.storage import Arrays, State

if TYPE_CHECKING:
    from hvdkit.tools.verification.recording import Recorder
    from hvdkit.training.trainer import Trainer


class View(ABC):
    """Models and optimizers of one framework, as named arrays."""

    framework: str

    @abstractmethod
    def set_dtype(self, dtype: str) -> None:
        """Build models in this dtype from now on."""

    @abstractmethod
    def threads(self) -> int:
        """Return the CPU threads of this process."""

    @abstractmethod
    def set_threads(self, number: int) -> None:
        """Compute with as many threads as the ranks, since the order of sums depends on it."""

    @abstractmethod
    def build(self, recipe: Recipe, data: Data | None = None) -> Any:
        """Build the recipe's model; one with a name takes what it needs from the data."""

    @abstractmethod
    def device(self, model: Any) -> str:
        """Return where a model lies."""

    @abstractmethod
    def parameters(self, model: Any) -> Arrays:
        """Return what optimizers may train."""

    @abstractmethod
    def statistics(self, model: Any) -> Arrays:
        """Return what training changes without gradients, but random states."""

    @abstractmethod
    def slots(self, model: Any, optimizer: Any) -> Arrays:
        """Return the optimizer's state."""

    @abstractmethod
    def rate(self, optimizer: Any) -> float:
        """Return the learning rate."""

    @abstractmethod
    def named_arrays(self, model: Any) -> Arrays:
        """Return weights and statistics under the names and in the layout that all frameworks share."""

    @abstractmethod
    def load_arrays(self, model: Any, arrays: Arrays) -> None:
        """Assign what :meth:`named_arrays` gave, here or in another framework."""

    @abstractmethod
    def layers(self, model: Any) -> Iterator[tuple[str, str]]:
        """Yield the name and the class of every layer."""

    @abstractmethod
    def freeze(self, model: Any) -> None:
        """Switch dropout off."""

    @abstractmethod
    def disturb(self, model: Any, rank: int) -> None:
        """Give a rank other weights and statistics than the root's, for the broadcast to mend."""

    @abstractmethod
    def random_state(self, model: Any) -> str:
        """Return a digest of the random state from which training draws; empty if it cannot be read."""

    @abstractmethod
    def is_random(self, model: Any, x: Any) -> bool:
        """Say whether a training pass draws random numbers."""

    @abstractmethod
    def neutral(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return inputs in the layout of neutral data."""

    @abstractmethod
    def record_batches(self, trainer: Trainer, recorder: Recorder) -> None:
        """Let the recorder see what the model is given, where that is more than the batches that are announced."""

    def random_now(self) -> Arrays:
        """Return the random state that a pass draws from, for the reference to draw the same."""
        return {}

    @abstractmethod
    def reference(self, recipe: Recipe) -> Reference:
        """Make the reference."""

    def state(self, model: Any, optimizer: Any) -> State:
        """Return what is compared."""
        return {
            "parameters": self.parameters(model),
            "statistics": self.statistics(model),
            "slots": self.slots(model, optimizer),
        }


def view_of(framework: str) -> View:
    """Return what knows a framework."""
    module = importlib.import_module(f"hvdkit.tools.verification.{'torch' if framework == 'torch' else 'keras'}_view")
    return cast(View, module.make_view(framework))
