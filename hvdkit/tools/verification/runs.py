"""What all runs have left behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hvdkit.tools.verification.layout import Layout
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
        whole: One process on whole global batches.
        resumed: The ranks of a run that went on from a checkpoint; empty if there is none.
        local_statistics: Layers whose statistics are each rank's own.
        random: Whether training draws random numbers although dropout is frozen.
        dropout: Whether there are layers with dropout.
    """

    framework: str
    layout: Layout
    known: dict[str, Any]
    ranks: list[Log]
    twin: Log
    whole: Log
    resumed: list[Log]
    local_statistics: list[str]
    random: bool
    dropout: bool

    @property
    def updates(self) -> int:
        """Updates that all runs have done."""
        return min(log.snapshots[-1].update for log in [*self.ranks, self.twin, self.whole])

    @property
    def on_cpu(self) -> bool:
        """Whether the ranks computed on the CPU."""
        return all(log.facts["device"].lower() == "cpu" for log in self.ranks)
