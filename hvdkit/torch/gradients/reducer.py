"""One gradient reducer over all engines: overlapped with backward, finished at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from hvdkit.engines.channel import Channel
from hvdkit.errors import ModelError
from hvdkit.torch.gradients.buckets import Bucket, lay_out
from hvdkit.torch.gradients.reductions import Reduction


class Reducer:
    """Averages the gradients of some parameters over all ranks and over ``accumulate`` backward passes.

    When ``backward()`` returns, the gradients are reduced; between passes that are accumulated they are local sums.
    Buckets follow the model's order backwards at first, then the order in which rank 0's gradients really came.
    """

    def __init__(
        self,
        channel: Channel,
        reduction: Reduction,
        named: dict[str, torch.nn.Parameter],
        sparse: set[int],
        accumulate: int = 1,
    ) -> None:
        self._channel, self._reduction = channel, reduction
        self._accumulate = accumulate
        self._names = {id(parameter): name for name, parameter in named.items()}
        self._sparse = [parameter for parameter in named.values() if id(parameter) in sparse]
        self._dense = [parameter for parameter in named.values() if id(parameter) not in sparse]
        self._order = self._dense[::-1]
        # the order of the first gradients as long as it is being noted, None when it is known
        self._arrivals: dict[int, None] | None = None
        self._reordered = False
        self._trained: list[bool] = []
        self._buckets: list[Bucket] = []
        self._place: dict[int, tuple[Bucket, int]] = {}
        self._launched = 0
        self._passes = 0
        self._inside = self._reduced = False
        self._local_only = False
        for parameter in named.values():
            self._watch(parameter)

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
        if not self._reduced:
            self._lay_out_anew()
            self._reduce(max(1, self._passes))

    def before_step(self) -> None:
        """Finish, and expect new gradients."""
        self.finish()
        self._reduced = False

    def losses(self) -> dict[str, int]:
        """Return how many elements compression has ``clipped`` and ``lost`` (rounded to 0) on this rank so far."""
        return self._reduction.losses()

    def _watch(self, parameter: torch.nn.Parameter) -> None:
        # a hook can only be put on a parameter that is trained, but one that is frozen now may be thawed later
        frozen = not parameter.requires_grad
        parameter.requires_grad_(True)
        parameter.register_post_accumulate_grad_hook(self._arrived)
        if frozen:
            parameter.requires_grad_(False)

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Note a gradient; start the reduction of a bucket when it is full."""
        if not self._inside:
            self._begin()
        if self._arrivals is not None:
            self._arrivals.setdefault(id(parameter))
        place = self._place.get(id(parameter)) if self._reducing else None
        if place is None:
            return
        bucket, index = place
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:
            raise ModelError(
                f"the gradient of {self._names[id(parameter)]!r} is sparse, but no Embedding(sparse=True) of the model "
                "owns it; pass the model to distribute(optimizer, model), or make the gradient dense"
            )
        if not bucket.take(index, gradient):
            raise ModelError(
                f"parameter {self._names[id(parameter)]!r} got a second gradient in one backward pass; "
                "use checkpoint(..., use_reentrant=False)"
            )
        if not bucket.awaited:
            self._launch_full_ones()

    def _begin(self) -> None:
        self._inside = True
        self._passes = 1 if self._reduced else self._passes + 1
        self._reduced = False
        self._reducing = self._passes >= self._accumulate and not self._local_only
        self._lay_out_anew()
        torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        self._inside = False
        if self._reducing:
            self._reduce(self._passes)

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
            self._launch()

    def _launch(self) -> None:
        bucket = self._buckets[self._launched]
        bucket.fill(max(1, self._passes))
        with torch.no_grad():
            bucket.handle = self._reduction.start(bucket.wire, bucket.lengths)
        self._launched += 1

    def _reduce(self, passes: int) -> None:
        """Start what has not been started, wait for all, and hand the gradients over."""
        self._passes = passes
        for bucket in self._buckets[self._launched :]:
            bucket.take_all()
        while self._launched < len(self._buckets):
            self._launch()
        with torch.no_grad():
            for bucket in self._buckets:
                self._reduction.finish(bucket.wire, bucket.handle)
                bucket.unpack()
        for parameter in self._sparse:
            self._reduce_sparse(parameter)
        if self._arrivals is not None:
            self._take_order()
        self._launched, self._passes, self._reduced = 0, 0, True

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
            indices, values = grad.indices()[0], grad.values() / (self._channel.size * self._passes)
        all_indices = self._channel.allgather(indices.to(parameter.device))
        all_values = self._channel.allgather(values.to(parameter.device))
        if grad is None and not len(all_indices):
            return
        joined = torch.sparse_coo_tensor(all_indices[None], all_values, parameter.shape, check_invariants=False)
        parameter.grad = joined.coalesce()
