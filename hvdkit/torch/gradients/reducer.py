"""One gradient reducer over all engines: overlapped with backward, finished at its end."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hvdkit.engines.channel import Channel
from hvdkit.errors import ModelError
from hvdkit.torch.gradients.buckets import Bucket, lay_out
from hvdkit.torch.gradients.passes import Pass
from hvdkit.torch.gradients.reductions import Reduction
from hvdkit.torch.tensors import sum_of_bits
from hvdkit.training.loop_weight import LOOP_WEIGHT


class Reducer:
    """Averages the gradients of some parameters over all ranks and over ``accumulate`` backward passes.

    When ``backward()`` returns, the gradients are reduced; between passes that are accumulated they are local sums.
    Buckets follow the model's order backwards at first, then the order in which rank 0's gradients really came.

    Attributes:
        key: What optimizers must have in common to share it.
        first_gradients: What the first bucket of the first reduction held on this rank, summed up by its bits.
    """

    def __init__(self, channel: Channel, reduction: Reduction, accumulate: int, key: tuple[Any, ...]) -> None:
        self.key = key
        self.first_gradients = torch.zeros((), dtype=torch.int64)
        self._is_first = True
        self._channel, self._reduction = channel, reduction
        self._accumulate = accumulate
        self._names: dict[int, str] = {}
        self._hooks: dict[int, Any] = {}
        self._sparse: dict[int, torch.nn.Parameter] = {}
        self._dense: list[torch.nn.Parameter] = []
        self._order: list[torch.nn.Parameter] = []
        # the order of the first gradients as long as it is being noted, None when it is known
        self._arrivals: dict[int, None] | None = None
        self._reordered = False
        self._trained: list[bool] | None = None
        self._buckets: list[Bucket] = []
        self._place: dict[int, tuple[Bucket, int]] = {}
        self._launched = 0
        self._passes = 0
        self._pass: Pass | None = None
        self._reduced = False
        self._local_only = False
        self._weighing: list[Any] = []
        LOOP_WEIGHT.follow(self)

    def weigh(self, weight: float) -> None:
        """Multiply what backward brings by this from now on."""
        while self._weighing:
            self._weighing.pop().remove()
        if weight == 1.0 or not self._reduction.weighs:
            return
        for parameter in [*self._dense, *self._sparse.values()]:
            if parameter.requires_grad:
                self._weighing.append(parameter.register_hook(functools.partial(_times, weight)))

    def add(self, named: Mapping[str, torch.nn.Parameter], sparse: set[int]) -> None:
        """Reduce these parameters too, from the next backward pass on; ``sparse`` are ids of those with rows."""
        for name, parameter in named.items():
            self._names[id(parameter)] = name
            self._watch(parameter)
        self._sparse |= {id(parameter): parameter for parameter in named.values() if id(parameter) in sparse}
        dense = [parameter for parameter in named.values() if id(parameter) not in sparse]
        self._dense += dense
        self._order = [*dense[::-1], *self._order]
        self._trained = None

    def leave(self, parameters: set[int]) -> None:
        """Leave parameters, by their ids, to another reducer."""
        for key in parameters & set(self._hooks):
            self._hooks.pop(key).remove()
            self._names.pop(key)
            self._sparse.pop(key, None)
        for held in (self._dense, self._order):
            held[:] = [parameter for parameter in held if id(parameter) not in parameters]
        self._trained = None

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes inside only accumulate; the next one outside reduces them all."""
        self._local_only = True
        try:
            yield
        finally:
            self._local_only = False

    def finish(self) -> None:
        """Reduce what backward has left: an incomplete accumulation, or nothing where only other ranks had a graph."""
        self._abandon_broken()
        if not self._reduced:
            self._lay_out_anew()
            self._reduce(max(1, self._passes))

    def before_step(self) -> None:
        """Finish, and expect new gradients."""
        self.finish()
        self._reduced = False

    @property
    def recordable(self) -> bool:
        """Whether a recorded update can hold its reductions."""
        return self._channel.recordable

    def note_replay(self) -> None:
        """Note that a recorded update is under way."""
        self._channel.note_replay()

    def abandon_recording(self) -> None:
        """Forget a pass that was being recorded when an error ended it; nothing of it has happened."""
        self._pass = None
        self._launched = self._passes = 0
        self._reduced = False
        for bucket in self._buckets:
            bucket.forget()

    def losses(self) -> dict[str, int]:
        """Return how many elements compression has ``clipped`` and ``lost`` (rounded to 0) on this rank so far."""
        return self._reduction.losses()

    def _watch(self, parameter: torch.nn.Parameter) -> None:
        # a hook can only be put on a parameter that is trained, but one that is frozen now may be thawed later
        frozen = not parameter.requires_grad
        parameter.requires_grad_(True)
        self._hooks[id(parameter)] = parameter.register_post_accumulate_grad_hook(self._arrived)
        if frozen:
            parameter.requires_grad_(False)

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Note a gradient; start the reduction of a bucket when it is full."""
        self._abandon_broken()
        current = self._pass or self._begin()
        if self._arrivals is not None:
            self._arrivals.setdefault(id(parameter))
        gradient = parameter.grad
        if gradient is not None:
            self._check(gradient, parameter)
        place = self._place.get(id(parameter)) if self._reducing and not current.nested else None
        if place is None:
            return
        bucket, index = place
        if not bucket.take(index, gradient):
            raise ModelError(
                f"parameter {self._names[id(parameter)]!r} got a second gradient in one backward pass; "
                "use checkpoint(..., use_reentrant=False)"
            )
        if not bucket.awaited:
            self._launch_full_ones()

    def _check(self, gradient: torch.Tensor, parameter: torch.Tensor) -> None:
        if gradient.requires_grad:
            raise ModelError(
                f"backward(create_graph=True) gave {self._names[id(parameter)]!r} a gradient with a graph, which the "
                "average over ranks would lose; take the gradients that a loss is made of with "
                "torch.autograd.grad(..., create_graph=True), and call backward() without create_graph"
            )
        if gradient.is_sparse and self._reducing and id(parameter) not in self._sparse:
            raise ModelError(
                f"the gradient of {self._names[id(parameter)]!r} is sparse, but no Embedding(sparse=True) of the model "
                "owns it; pass the model to distribute(optimizer, model), or make the gradient dense"
            )

    def _begin(self) -> Pass:
        if self._reduced and not self._reduction.repeatable:
            raise ModelError(
                "a second backward() before step() would add up sums that are added up already; with reduction='sum', "
                "add the losses and call backward() once for each step()"
            )
        LOOP_WEIGHT.count_pass()
        self._pass = Pass(self._end)
        self._passes = 1 if self._reduced else self._passes + 1
        self._reduced = False
        self._reducing = self._passes >= self._accumulate and not self._local_only
        self._lay_out_anew()
        return self._pass

    def _end(self) -> None:
        self._pass = None
        if self._reducing:
            self._reduce(self._passes)

    def _abandon_broken(self) -> None:
        """After an error inside backward, bring what the other ranks may wait for; it is good for nothing."""
        if self._pass is None or not self._pass.broken:
            return
        self._pass = None
        self._passes -= 1
        if not self._reducing:
            return
        for bucket in self._buckets[self._launched :]:
            bucket.spoil()
            self._start(bucket)
        self._passes = max(1, self._passes)
        self._wait()
        self._launched, self._passes = 0, 0

    def _lay_out_anew(self) -> None:
        """Make new buckets if the order became known, or layers were frozen or thawed, since the last pass."""
        trained = [parameter.requires_grad for parameter in self._dense]
        if trained != self._trained:
            self._arrivals = {}
        elif not self._reordered:
            return
        self._trained, self._reordered = trained, False
        self._buckets = lay_out([parameter for parameter in self._order if parameter.requires_grad])
        self._place = {
            id(parameter): (bucket, index)
            for bucket in self._buckets
            for index, parameter in enumerate(bucket.parameters)
        }

    def _launch_full_ones(self) -> None:
        """Start buckets in their fixed order, so that all ranks start them alike."""
        while self._launched < len(self._buckets) and not self._buckets[self._launched].awaited:
            bucket = self._buckets[self._launched]
            bucket.fill(max(1, self._passes))
            self._start(bucket)

    def _start(self, bucket: Bucket) -> None:
        with torch.no_grad():
            if self._is_first:
                self._is_first, self.first_gradients = False, sum_of_bits(bucket.gradient_part)
            bucket.handle = self._reduction.start(bucket.wire, bucket.lengths)
        self._launched += 1

    def _reduce(self, passes: int) -> None:
        """Start what has not been started, wait for all, and hand the gradients over."""
        self._passes = passes
        for bucket in self._buckets[self._launched :]:
            bucket.take_all()
            bucket.fill(passes)
            self._start(bucket)
        self._wait()
        self._launched, self._passes, self._reduced = 0, 0, True

    def _wait(self) -> None:
        with torch.no_grad():
            for bucket in self._buckets:
                self._reduction.finish(bucket.wire, bucket.handle)
                bucket.unpack()
        for parameter in self._sparse.values():
            self._reduce_sparse(parameter)
        if self._arrivals is not None:
            self._take_order()

    def _take_order(self) -> None:
        """Take the order in which rank 0's gradients came; those that did not come stay behind the others."""
        arrivals, self._arrivals = self._arrivals or {}, None
        if len(self._buckets) < 2:
            return
        place = {id(parameter): number for number, parameter in enumerate(self._order)}
        came = [place[key] for key in arrivals if key in place]
        order = came + sorted(set(place.values()) - set(came))
        mine = torch.tensor(order, dtype=torch.float32, device=self._order[0].device)
        agreed = self._channel.allreduce(mine if self._channel.is_root else mine.zero_()).tolist()
        if agreed != list(range(len(agreed))):
            self._order = [self._order[int(number)] for number in agreed]
            self._reordered = True

    def _reduce_sparse(self, parameter: torch.nn.Parameter) -> None:
        """Gather rows and their indices from all ranks; a rank that touched no row brings none."""
        grad = parameter.grad
        if grad is None:
            indices = torch.zeros(0, dtype=torch.int64)
            values = torch.zeros(0, *parameter.shape[1:], dtype=parameter.dtype)
        else:
            grad = grad.coalesce()
            indices, values = grad.indices()[0], grad.values() * self._reduction.share(self._passes)
        all_indices = self._channel.allgather(indices.to(parameter.device))
        all_values = self._channel.allgather(values.to(parameter.device))
        if grad is None and not len(all_indices):
            return
        joined = torch.sparse_coo_tensor(all_indices[None], all_values, parameter.shape, check_invariants=False)
        parameter.grad = joined.coalesce()


def _times(weight: float, gradient: torch.Tensor) -> torch.Tensor:
    """Return a gradient times a number; 0 times NaN is 0, since a repeated sample counts nothing."""
    return gradient * weight if weight else torch.zeros_like(gradient)
