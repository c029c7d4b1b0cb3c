"""What all runs have left behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.randomness import HIDDEN, REPLAYED
from hvdkit.tools.verification.replays import sums_alike
from hvdkit.tools.verification.resuming import Resumption
from hvdkit.tools.verification.storage import Log


@dataclass(frozen=True)
class Runs:
    """The logs of all processes.

    Attributes:
        framework: ``torch``, ``tf`` or ``keras``.
        layout: The size of the runs.
        known: What the survey found.
        ranks: One log for each rank.
        twin: One process that summed the ranks' micro-batches in rank order.
        rounded: The twin once more, its weights rounded otherwise while gradients are taken; as far as it is needed.
        whole: One process on whole global batches, as far as it is needed.
        resumed: The ranks of each run that went on from a checkpoint; empty if there is none.
        local_statistics: Layers whose statistics are each rank's own.
        random: Whether training draws random numbers that cannot be switched off.
        dropout: Whether it draws random numbers that can be switched off.
        quiet: The twin once more with randomness switched off, as on whole batches; None where there is none.
        limits: What rounding can do to each group of arrays, once it is worked out.
        unresumed: How the runs that go on from a checkpoint failed, if they did.
    """

    framework: str
    layout: Layout
    known: dict[str, Any]
    ranks: list[Log]
    twin: Log
    rounded: Log
    whole: Log
    resumed: list[tuple[Resumption, list[Log]]]
    local_statistics: list[str]
    random: bool
    dropout: bool
    quiet: Log | None = None
    unresumed: str | None = None
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def parts(self) -> Log:
        """What is held against whole batches: the twin, without random numbers."""
        return self.quiet or self.twin

    @property
    def replayed(self) -> bool:
        """Whether the twin draws the ranks' random numbers again."""
        return bool(self.known["randomness"] == REPLAYED)

    @property
    def hidden(self) -> bool:
        """Whether training draws random numbers that cannot be drawn again."""
        return bool(self.known["randomness"] == HIDDEN)

    @property
    def updates(self) -> int:
        """Updates that all runs have done."""
        return min(log.snapshots[-1].update for log in [*self.ranks, self.twin])

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks computed on the CPU."""
        return all(log.facts["device"].lower() == "cpu" for log in self.ranks)

    @property
    def exact(self) -> bool:
        """Whether ranks and twin add up the same numbers in the same order, bit for bit."""
        return sums_alike(self.framework, self.layout.size, self.known)

    @property
    def probes(self) -> list[dict[str, Any]]:
        """What was seen of loss and metrics of batches and of their parts."""
        return [probe for probe in self.whole.facts["probes"] if isinstance(probe, dict)]

    @property
    def weighs_classes(self) -> bool:
        """Whether the loss is known to divide by the weights of classes, which ranks have different sums of."""
        return any(probe["averaged_by_samples"] for probe in self.probes)
