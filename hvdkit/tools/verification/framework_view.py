"""What the tool needs to know about a framework; one class for torch, one for the two on Keras models."""

from __future__ import annotations

import atexit
import gc
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import NDArray

from hvdkit.job import random_streams
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.tools.verification.given import UNKNOWN, Given
from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.randomness import FROZEN, HIDDEN, NONE
from hvdkit.tools.verification.reference import Reference
from hvdkit.tools.verification.storage import Arrays, Draws, State

if TYPE_CHECKING:
    from hvdkit.tools.verification.recording import Recorder
    from hvdkit.training.trainer import Trainer


class View(ABC):
    """Models and optimizers of one framework, as named arrays."""

    framework: str

    @abstractmethod
    def set_dtype(self, dtype: str) -> None:
        """Build models in this dtype from now on."""

    def compute_alike(self) -> None:  # noqa: B027 - on a CPU they do
        """Let all processes on GPUs compute alike, in full precision, whatever that costs."""

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
    def rates(self, optimizer: Any) -> list[float]:
        """Return the learning rate of each of the optimizer's groups of parameters."""

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
    def draws(self, model: Any) -> Draws:
        """Return where the random generators stand that a training pass may draw from and that can be set."""

    @abstractmethod
    def set_draws(self, model: Any, draws: Draws) -> None:
        """Let the random generators go on from where they stood."""

    @abstractmethod
    def saved_generators(self, model: Any) -> list[str]:
        """Return the names of the generators whose places checkpoints hold."""

    @abstractmethod
    def is_random(self, model: Any, inputs: Any) -> bool:
        """Say whether a training pass draws random numbers."""

    def randomness(self, recipe: Recipe, model: Any, batch: Any) -> str:
        """Return the kind of randomness in a training pass on a batch; called last, since it may change the model."""
        random = self.is_random(model, batch[0])
        self.freeze(model)
        return HIDDEN if self.is_random(model, batch[0]) else FROZEN if random else NONE

    def given(self, data: Any) -> Given:
        """Say what data of the framework's own are."""
        del data
        return Given(UNKNOWN)

    def part(self, data: Any, samples: int | None, dtype: str) -> Any:
        """Return the first samples of data of the framework's own, all of them if None, in a dtype."""
        del samples, dtype
        return data

    def sides(self, data: Any) -> tuple[Any, Any]:
        """Return inputs and targets of arrays."""
        inputs, targets = data
        return inputs, targets

    def read_given(
        self, anew: Callable[..., Any], found: Given, recipe: Recipe, layout: Layout, train: bool
    ) -> dict[str, Any]:
        """Read data that are known by what they give alone; ``anew`` makes them."""
        raise NotImplementedError

    def load(self, data: Any, places: list[int]) -> list[Any]:
        """Return the samples at some places of a data set of the framework's own."""
        raise NotImplementedError

    def collate(self, data: Any, samples: list[Any]) -> tuple[Any, Any]:
        """Return a batch of samples as trees of NumPy arrays, inputs and targets."""
        raise NotImplementedError

    def read(self, data: Any, samples: int | None, seed: int) -> list[Any]:
        """Read samples of a stream, which begins anew at its end; None reads it once, to its end."""
        raise NotImplementedError

    def drawn_order(self, data: Any) -> list[int]:
        """Draw the places of an epoch's samples from a loader's own sampler."""
        raise NotImplementedError

    def generators_at(self, seed: int) -> AbstractContextManager[None]:
        """Let all random generators start at a seed inside, and go on afterwards as if nothing had been drawn."""
        return random_streams.one_random_state(seed)

    @abstractmethod
    def array(self, part: Any) -> NDArray[Any]:
        """Return a tensor or array of a batch as NumPy's."""

    @abstractmethod
    def neutral(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return inputs in the layout of neutral data."""

    @abstractmethod
    def record_batches(self, trainer: Trainer, recorder: Recorder) -> None:
        """Let the recorder see what the model is given, where that is more than the batches that are announced."""

    def begin_anew(self) -> None:  # noqa: B027 - most frameworks keep nothing
        """Forget what earlier models have left in this process, such as counters of names."""

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
    """Return what knows a framework, which is imported here."""
    atexit.register(_leave_garbage)
    module = importlib.import_module(f"hvdkit.tools.verification.{'torch' if framework == 'torch' else 'keras'}_view")
    return cast(View, module.make_view(framework))


def _leave_garbage() -> None:
    """Let the process end at once: looking for what nobody refers to takes a second among a framework's objects."""
    gc.disable()
    gc.freeze()
