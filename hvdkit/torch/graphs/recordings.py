"""Runs a step on tensors: a few times as it is, then as a recording, one for each kind of batch."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch

from hvdkit.job import world as worlds
from hvdkit.torch import drift
from hvdkit.torch.distribution import reducers_of
from hvdkit.torch.graphs.host_state import HostState, random_places
from hvdkit.torch.graphs.recorder import Recorder, Replay
from hvdkit.torch.graphs.recording import Run, running
from hvdkit.torch.random_state import generators_of
from hvdkit.torch.rates import step_rates
from hvdkit.torch.tensors import device_of, original
from hvdkit.training.loop_weight import LOOP_WEIGHT
from hvdkit.training.observers import say

# runs before a kind of batch is recorded: the first makes the optimizer's state, and in the others nothing may change
# on the host or wait for the device
_RUNS_BEFORE = 3
# each holds memory of its own
_MOST = 8
# changes of the host's state that each leave a recording unused for the most part, before none is made any more
_MOST_CHANGES = 4
_REPLAYS_WORTH_IT = 20

Work = Callable[[list[torch.Tensor]], Any]


class Recordings:
    """The recordings of one step.

    Args:
        recorder: Of the device.
        model: What is trained.
        optimizer: What trains it.
        functions: What the step calls beside the model: the step itself, or loss and metrics.

    Attributes:
        reason: Why the step was found to be one that cannot be recorded; empty as long as it may be.
        over: Whether nothing is recorded any more.
    """

    def __init__(
        self,
        recorder: Recorder,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        functions: Sequence[Any],
    ) -> None:
        self.reason, self.over = "", False
        self._recorder = recorder
        self._model, self._optimizer = original(model), optimizer
        self._device = device_of(self._model)
        self._host = HostState(self._model, optimizer, functions)
        self._known: list[Any] = []
        self._runs: Counter[Hashable] = Counter()
        self._held: dict[Hashable, _Recording] = {}
        self._changes = self._replays = 0
        worlds.current().before_leaving(self.release)

    def release(self) -> None:
        """Let go of all recordings, and make no more."""
        self.over = True
        self._held.clear()
        self._recorder.release()

    def run(self, key: Hashable, tensors: list[torch.Tensor], work: Work) -> Any:
        """Do ``work`` on these tensors, by a recording of what it did with others of the same shape if there is one.

        Args:
            key: Whatever else decides what ``work`` does.
            tensors: On the device; what is recorded reads copies of them.
            work: Returns tensors, which a later run overwrites, in any structure.
        """
        if self.over:
            return work(tensors)
        with self._recorder.beside():
            self._forget_what_is_out_of_date()
            key = key, tuple((tensor.shape, tensor.dtype, tensor.stride()) for tensor in tensors)
            held = self._held.get(key)
            if held is not None:
                result = self._replay(held, tensors)
            elif self._runs[key] < _RUNS_BEFORE or len(self._held) >= _MOST or self._lacks_memory():
                result = self._run_as_it_is(key, tensors, work)
            else:
                result = self._record(key, tensors, work)
        return result

    def _forget_what_is_out_of_date(self) -> None:
        now = self._host.read()
        if self._known and now != self._known:
            self._changes = 1 if self._replays > _REPLAYS_WORTH_IT else self._changes + 1
            self._replays = 0
            if self._changes > _MOST_CHANGES:
                self._give_up(f"{self._host.differences(self._known, now)} changes again and again")
            self._held.clear()
            self._runs.clear()
        self._known = now

    def _lacks_memory(self) -> bool:
        lacking = "" if self._held else self._recorder.lacks()
        if lacking:
            self._give_up(lacking)
        return bool(lacking)

    def _run_as_it_is(self, key: Hashable, tensors: list[torch.Tensor], work: Work) -> Any:
        self._runs[key] += 1
        if self._runs[key] == 1 or self._runs[key] > _RUNS_BEFORE:
            result = self._eager(tensors, work)
            self._known = self._host.read()
            return result
        places = random_places(self._device)
        with self._recorder.watching() as waits:
            result = self._eager(tensors, work)
        self._compare(places)
        if waits and not self.reason:
            self._give_up(waits[0])
        return result

    def _compare(self, places: tuple[Any, ...]) -> None:
        """Give up if a run has changed something on the host."""
        now = self._host.read()
        changed = self._host.differences(self._known, now)
        self._known = now
        if changed:
            self._give_up(f"{changed} changes in every step")
        elif places != random_places(self._device):
            self._give_up("the step draws random numbers on the host")

    def _eager(self, tensors: list[torch.Tensor], work: Work) -> Any:
        with running(recording=False) as run:
            result = work(tensors)
        drift.count_updates(run.updated)
        return result

    def _replay(self, held: _Recording, tensors: list[torch.Tensor]) -> Any:
        self._replays += 1
        LOOP_WEIGHT.count_passes(held.passes)
        step_rates(self._optimizer).fill(self._optimizer)
        held.replay(tensors)
        for parameter, gradient in held.gradients:
            parameter.grad = gradient
        for reducer in reducers_of(self._optimizer):
            reducer.note_replay()
        drift.count_updates(held.updated)
        return held.result

    def _record(self, key: Hashable, tensors: list[torch.Tensor], work: Work) -> Any:
        """Record and replay; run the step as it is if it cannot be recorded, as if nothing had been tried."""
        copies = [tensor.clone() for tensor in tensors]
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters]
        places, passes = random_places(self._device), LOOP_WEIGHT.passes
        step_rates(self._optimizer).fill(self._optimizer)
        generators = [each for _, each in generators_of(self._model) if each.device.type != "cpu"]
        with running(recording=True) as run:
            try:
                result, replay = self._recorder.record(lambda: work(copies), generators)
            except Exception as error:  # noqa: BLE001 - whatever it is, the step itself may run without it
                self._give_up(_reason(error))
        if self.reason:
            self._undo(parameters, gradients)
            return self._eager(tensors, work)
        held = _Recording(copies, result, replay, run, LOOP_WEIGHT.passes - passes)
        held.gradients = [(parameter, parameter.grad) for parameter in parameters]
        LOOP_WEIGHT.count_passes(-held.passes)
        self._held[key] = held
        result = self._replay(held, tensors)
        self._compare(places)
        return result

    def _undo(self, parameters: list[Any], gradients: list[Any]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for reducer in reducers_of(self._optimizer):
            reducer.abandon_recording()
        step_rates(self._optimizer).take_back(self._optimizer)

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.release()
        say_why_not(reason)


class _Recording:
    """What one kind of batch is done by."""

    def __init__(self, copies: list[torch.Tensor], result: Any, replay: Replay, run: Run, passes: int) -> None:
        self._copies, self._replay = copies, replay
        self.result, self.updated, self.passes = result, run.updated, passes
        self.gradients: list[tuple[torch.nn.Parameter, torch.Tensor | None]] = []

    def replay(self, tensors: list[torch.Tensor]) -> None:
        if self._copies:
            torch._foreach_copy_(self._copies, tensors)
        self._replay()


def say_why_not(reason: str) -> None:
    """Say on rank 0 why updates are not recorded."""
    if worlds.current().is_root:
        say(f"hvdkit: no CUDA graphs: {reason}; training goes on without")


def _reason(error: BaseException) -> str:
    """Return what could not be recorded, and the line of the user's that asked for it."""
    first: BaseException = error
    while first.__context__ is not None:
        first = first.__context__
    text = str(first).strip().splitlines()
    frames = [frame for frame in traceback.extract_tb(first.__traceback__) if not _is_a_librarys(frame.filename)]
    place = f" at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    return f"{type(first).__name__}{place} ({text[0] if text else 'no message'})"


def _is_a_librarys(path: str) -> bool:
    return path.startswith(_LIBRARIES)


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
