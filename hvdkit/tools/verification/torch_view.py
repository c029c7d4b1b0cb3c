"""What the tool needs to know about torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hvdkit.recipe.declaration import Data, Recipe
from hvdkit.tools.verification.framework_view import View
from hvdkit.tools.verification.reference import Gradients, Reference
from hvdkit.tools.verification.storage import Arrays
from hvdkit.torch.building import build_loss, build_model, build_optimizer
from hvdkit.torch.models import load_arrays, named_arrays


class TorchView(View):
    """Models and optimizers in torch."""

    framework = "torch"

    def set_dtype(self, dtype: str) -> None:
        """Build models in this dtype from now on."""
        torch.set_default_dtype(getattr(torch, dtype))

    def threads(self) -> int:
        """Return the CPU threads of this process."""
        return int(torch.get_num_threads())

    def set_threads(self, number: int) -> None:
        """Compute as the ranks do, whose sums depend on it."""
        torch.set_num_threads(number)

    def build(self, recipe: Recipe, data: Data | None = None) -> Any:
        """Build the recipe's model."""
        return build_model(recipe.pick("model", "torch"), recipe.seed, _device(), data)

    def device(self, model: Any) -> str:
        """Return where a model lies."""
        return _device(model)

    def parameters(self, model: Any) -> Arrays:
        """Return the parameters."""
        return {name: _array(value) for name, value in model.named_parameters()}

    def statistics(self, model: Any) -> Arrays:
        """Return the buffers."""
        return {name: _array(value) for name, value in model.named_buffers()}

    def slots(self, model: Any, optimizer: Any) -> Arrays:
        """Return the optimizer's state."""
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        found = {}
        for number, state in optimizer.state_dict()["state"].items():
            for name, value in state.items():
                if isinstance(value, (torch.Tensor, int, float)):
                    found[f"{name} of {names.get(id(parameters[number]), number)}"] = _array(torch.as_tensor(value))
        return found

    def rate(self, optimizer: Any) -> float:
        """Return the learning rate."""
        return float(optimizer.param_groups[0]["lr"])

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
        """Switch dropout off."""
        for module in model.modules():
            if "Dropout" in type(module).__name__ and hasattr(module, "p"):
                module.p = 0.0

    def disturb(self, model: Any, rank: int) -> None:
        """Give a rank other weights and statistics than the root's, for the broadcast to mend."""
        generator = torch.Generator().manual_seed(rank)
        with torch.no_grad():
            for value in [*model.parameters(), *model.buffers()]:
                if value.is_floating_point() and not torch.nn.parameter.is_lazy(value):
                    noise = torch.rand(value.shape, generator=generator, dtype=torch.float64)
                    value.add_(noise.to(value.device, value.dtype), alpha=0.1)

    def random_state(self, model: Any) -> str:
        """Return a digest of torch's random state."""
        return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:16]

    def is_random(self, model: Any, x: Any) -> bool:
        """Say whether a training pass draws random numbers."""
        model.train()
        before = self.random_state(model)
        with torch.no_grad():
            model(torch.as_tensor(x).to(_device(model)))
        return self.random_state(model) != before

    def neutral(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return images as NHWC."""
        return x.transpose(0, 2, 3, 1) if x.ndim == 4 else x

    def record_batches(self, trainer: Any, recorder: Any) -> None:
        """Do nothing: the loop trains on the batches that it announces."""

    def random_now(self) -> Arrays:
        """Return the random state that a pass draws from."""
        return {"random": torch.get_rng_state().numpy()}

    def reference(self, recipe: Recipe) -> Reference:
        """Make the reference."""
        return TorchReference(self, recipe)


class TorchReference(Reference):
    """The reference in torch."""

    def __init__(self, view: TorchView, recipe: Recipe) -> None:
        model = view.build(recipe)
        super().__init__(recipe, model, *build_optimizer(recipe.pick("optimizer", "torch"), model))
        self._loss = build_loss(recipe.pick("loss", "torch"))
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    def gradients(self, arrays: Arrays, weight: float, count: int) -> Gradients:
        """Return the gradients of ``weight`` times the mean loss, and note loss and metrics."""
        if "random" in arrays:
            torch.set_rng_state(torch.from_numpy(arrays["random"]))
        self.model.train()
        self.optimizer.zero_grad()
        x, y = (torch.from_numpy(arrays[name]).to(_device(self.model)) for name in ("x", "y"))
        outputs = self.model(x)
        loss = self._loss(outputs, y)
        (loss if weight == 1.0 else loss * weight).backward()
        self._measure(loss, outputs, y, count)
        return [None if p.grad is None else p.grad.detach().clone() for p in self._parameters]

    def _measure(self, loss: Any, outputs: Any, y: Any, count: int) -> None:
        self.note("loss", float(loss.detach()), count)
        for entry in self.recipe.metrics:
            if isinstance(entry, str):
                if outputs.dim() == y.dim() + 1 and outputs.shape[1] > 1:
                    self.note("accuracy", float((outputs.argmax(1) == y).double().mean()), count)
            elif not hasattr(entry, "update"):
                name = getattr(entry, "__name__", type(entry).__name__)
                self.note(name, float(entry(outputs.detach(), y)), count)

    def apply(self, gradients: Gradients, rate: float) -> None:
        """Clip the gradients and update the weights."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        limit = self.recipe.distribute.clip_norm if self.recipe.distribute else None
        grads = [gradient for gradient in gradients if gradient is not None]
        if limit is not None and grads:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in grads]))
            for gradient in grads:
                gradient.mul_((limit / norm).clamp(max=1.0))
        for group, own in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate if own == self._rates[0] else own * (rate / self._rates[0])
        self.optimizer.step()

    def evaluate(self, x: Any, y: Any) -> None:
        """Note loss and metrics of neutral arrays, without training."""
        self.model.eval()
        place = _device(self.model)
        inputs = torch.from_numpy(x)
        inputs = inputs.permute(0, 3, 1, 2) if inputs.dim() == 4 else inputs
        targets = torch.from_numpy(y)
        targets = targets if targets.is_floating_point() else targets.long()
        with torch.no_grad():
            for start in range(0, len(x), self.recipe.batch_size):
                part = slice(start, start + self.recipe.batch_size)
                outputs, labels = self.model(inputs[part].to(place)), targets[part].to(place)
                self._measure(self._loss(outputs, labels), outputs, labels, len(labels))

    def statistics(self) -> Arrays:
        """Return the buffers."""
        return {name: _array(value) for name, value in self.model.named_buffers()}

    def write(self, arrays: Arrays) -> None:
        """Assign parameters or buffers by name."""
        tensors = dict([*self.model.named_parameters(), *self.model.named_buffers()])
        with torch.no_grad():
            for name, value in arrays.items():
                tensors[name].copy_(torch.from_numpy(np.array(value)))


def _device(model: Any = None) -> str:
    parameter = next(iter(model.parameters()), None) if model is not None else None
    if parameter is not None:
        return str(parameter.device)
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _array(tensor: Any) -> NDArray[Any]:
    value = tensor.detach().cpu()
    array: NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()
    return array


def make_view(framework: str) -> TorchView:
    """Return what knows torch."""
    del framework
    return TorchView()
