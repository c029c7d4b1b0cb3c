"""Framework-neutral optimizers: one meaning of every constant in every framework.

``weight_decay`` of SGD, Adam and Adagrad is L2, added to the reduced gradient; that of AdamW is decoupled
(Loshchilov and Hutter, 2019). The learning rate is that of one process.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvdkit.errors import RecipeError


def _at_least_zero(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            raise RecipeError(f"{type(owner).__name__}.{name} is {value!r}; it must be a number >= 0")


def _fraction(owner: object, name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise RecipeError(f"{type(owner).__name__}.{name} is {value!r}; it must lie in [0, 1)")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum or Nesterov momentum.

    Raises:
        RecipeError: A value is out of range, or ``nesterov`` is set without momentum.
    """

    lr: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _at_least_zero(self, "lr", "weight_decay")
        _fraction(self, "momentum", self.momentum)
        if self.nesterov and self.momentum == 0:
            raise RecipeError("SGD.nesterov is True but momentum is 0; give a momentum, such as 0.9")


@dataclass(frozen=True)
class _Adaptive:
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _at_least_zero(self, "lr", "eps", "weight_decay")
        if not isinstance(self.betas, tuple) or len(self.betas) != 2:
            raise RecipeError(f"{type(self).__name__}.betas is {self.betas!r}; it must be a pair of numbers")
        for beta in self.betas:
            _fraction(self, "betas", beta)


@dataclass(frozen=True)
class Adam(_Adaptive):
    """Adam (Kingma and Ba, 2015); ``weight_decay`` is L2.

    Raises:
        RecipeError: A value is out of range.
    """


@dataclass(frozen=True)
class AdamW(_Adaptive):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019).

    Raises:
        RecipeError: A value is out of range.
    """

    weight_decay: float = 0.01


@dataclass(frozen=True)
class Adagrad:
    """Adagrad (Duchi et al., 2011); the accumulator starts at ``initial_accumulator``.

    Raises:
        RecipeError: A value is out of range.
    """

    lr: float = 0.01
    initial_accumulator: float = 0.1
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _at_least_zero(self, "lr", "initial_accumulator", "eps", "weight_decay")


Optimizer = SGD | Adam | AdamW | Adagrad
