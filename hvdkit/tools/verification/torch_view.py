"""What the tool needs to know about torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdkit.process.environment import prefer
from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.recipe.trees import map_tree
from hvdkit.tools.verification import torch_data, torch_randomness
from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.given import Given
from hvdkit.tools.verification.reference import Reference
from hvdkit.tools.verification.storage import Arrays, Draws
from hvdkit.tools.verification.torch_reference import TorchReference, as_array, device_of
from hvdkit.torch.building import build_loss, build_model
from hvdkit.torch.models import load_arrays, named_arrays


class TorchView(View):
    """Models and optimizers in torch."""

    framework = "torch"

    def __init__(self) -> None:
        self._used: list[float] = []
        self._compiled = False

    def set_dtype(self, dtype: str) -> None:
        """Build models in this dtype from now on."""
        torch.set_default_dtype(getattr(torch, dtype))

    def compute_alike(self) -> None:
        """Let GPUs add up in one order, without TensorFloat-32."""
        if not torch.cuda.is_available():
            return
        prefer("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    def threads(self) -> int:
        """Return the CPU threads of this process."""
        return int(torch.get_num_threads())

    def set_threads(self, number: int) -> None:
        """Compute as the ranks do, whose sums depend on it."""
        torch.set_num_threads(number)

    def build(self, recipe: Recipe, data: Data | None = None) -> Any:
        """Build the recipe's model."""
        self._compiled = recipe.compile
        return build_model(recipe.pick("model", "torch"), recipe.seed, device_of(), data)

    def device(self, model: Any) -> str:
        """Return where a model lies."""
        return device_of(model)

    def parameters(self, model: Any) -> Arrays:
        """Return the parameters."""
        return {name: as_array(value) for name, value in model.named_parameters()}

    def statistics(self, model: Any) -> Arrays:
        """Return the buffers."""
        return {name: as_array(value) for name, value in model.named_buffers()}

    def slots(self, model: Any, optimizer: Any) -> Arrays:
        """Return the optimizer's state."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found = {}
        for number, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, (torch.Tensor, int, float)):
                    found[f"{name} of {names.get(id(parameters[number]), number)}"] = as_array(torch.as_tensor(value))
        return found

    def rates(self, optimizer: Any) -> list[float]:
        """Return the learning rate of each group of parameters, that of the last update if it was noted."""
        return self._used or [float(group["lr"]) for group in optimizer.param_groups]

    def named_arrays(self, model: Any) -> Arrays:
        """Return weights and statistics in the layout that all frameworks share."""
        return named_arrays(model)

    def load_arrays(self, model: Any, arrays: Arrays) -> None:
        """Assign them."""
        load_arrays(model, arrays)

    def layers(self, model: Any) -> Iterator[tuple[str, str]]:
        """Yield the name and the class of every layer."""
        for name, module in model.named_modules():
            yield name, type(module).__name__

    def freeze(self, model: Any) -> None:
        """Switch dropout off; in a compiled model that of layers alone."""
        torch_randomness.switch_off(model, functions=not self._compiled)

    def disturb(self, model: Any, rank: int) -> None:
        """Give a rank other weights and statistics than the root's, for the broadcast to mend."""
        generator = torch.Generator().manual_seed(rank)
        with torch.no_grad():
            for value in [*model.parameters(), *model.buffers()]:
                if value.is_floating_point() and not torch.nn.parameter.is_lazy(value):
                    noise = torch.rand(value.shape, generator=generator, dtype=torch.float64)
                    value.add_(noise.to(value.device, value.dtype), alpha=0.1)

    def draws(self, model: Any) -> Draws:
        """Return where the generators of Python, NumPy, torch and the model stand."""
        return torch_randomness.read_draws(model)

    def set_draws(self, model: Any, draws: Draws) -> None:
        """Let the generators go on from where they stood."""
        torch_randomness.write_draws(model, draws)

    def saved_generators(self, model: Any) -> list[str]:
        """Return the names of the generators whose places checkpoints hold."""
        return list(self.draws(model))

    def generators_at(self, seed: int) -> AbstractContextManager[None]:
        """Let all random generators start at a seed inside, and go on afterwards as if nothing had been drawn."""
        return torch_randomness.generators_at(seed)

    def is_random(self, model: Any, inputs: Any) -> bool:
        """Say whether a training pass draws random numbers."""
        model.train()
        with torch.no_grad(), torch.random.fork_rng():
            before = torch.get_rng_state()
            model(map_tree(lambda part: torch.as_tensor(part).to(device_of(model)), inputs))
            return not torch.equal(torch.get_rng_state(), before)

    def randomness(self, recipe: Recipe, model: Any, batch: Any) -> str:
        """Return the kind of randomness in a training pass on a batch, its loss included; dropout is off then."""
        placed = [map_tree(lambda part: torch.as_tensor(part).to(device_of(model)), side) for side in batch]
        loss = build_loss(recipe.pick("loss", "torch"))
        return torch_randomness.kind_of(model, loss, placed, compiled=recipe.compile)

    def given(self, data: Any) -> Given:
        """Say what a data set, a loader or a stream is."""
        return torch_data.describe(data)

    def part(self, data: Any, samples: int | None, dtype: str) -> Any:
        """Return the first samples of a data set or loader, all of them if None, in a dtype."""
        return data if data is None else torch_data.part(data, samples, dtype)

    def load(self, data: Any, places: list[int]) -> list[Any]:
        """Return the samples at some places of a data set."""
        return torch_data.samples_at(data, places)

    def collate(self, data: Any, samples: list[Any]) -> tuple[Any, Any]:
        """Return a batch of samples as trees of NumPy arrays, inputs and targets."""
        inputs, targets = torch_data.collated(data, samples)
        return map_tree(self.array, inputs), map_tree(self.array, targets)

    def read(self, data: Any, samples: int | None, seed: int) -> list[Any]:
        """Read samples of a stream, which begins anew at its end; None reads it once, to its end."""
        with self.generators_at(torch_data.seed_of_stream(seed)):
            return torch_data.from_stream(data, samples)

    def drawn_order(self, data: Any) -> list[int]:
        """Draw the places of an epoch's samples from a loader's own sampler."""
        return torch_data.drawn(data)

    def array(self, part: Any) -> NDArray[Any]:
        """Return a tensor or array of a batch as NumPy's."""
        return part.detach().cpu().numpy() if isinstance(part, torch.Tensor) else np.asarray(part)

    def neutral(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return images as NHWC."""
        return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x

    def record_batches(self, trainer: Any, recorder: Any) -> None:
        """Note the rates that updates are done at: a scheduler's are others between them."""

        def note(optimizer: Any, *_: Any) -> None:
            self._used = [float(group["lr"]) for group in optimizer.param_groups]

        self._used = []
        trainer.optimizer.register_step_pre_hook(note)

    def reference(self, recipe: Recipe) -> Reference:
        """Make the reference."""
        return TorchReference(self, recipe)


def make_view(framework: str) -> TorchView:
    """Return what knows torch."""
    del framework
    return TorchView()
