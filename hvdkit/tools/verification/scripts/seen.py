"""All runs of a script, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

from hvdkit.tools.verification.scripts.job import ScriptJob, ScriptLog


@dataclass
class Seen:
    """What the runs have left.

    Attributes:
        job: What was verified.
        ranks: Of the script on all ranks.
        whole: On one process with whole global batches; None where that cannot be compared.
        nudged: The same with its weights moved in the last place.
        single: On one process with rank 0's first batch; None where the whole batches can be compared.
        doubled: The same with each sample twice.
        no_whole: Why whole batches cannot be compared; empty if they can.
        failed: How the run on all ranks has ended, where a verb refused something: the verb and its words.
    """

    job: ScriptJob
    ranks: list[ScriptLog]
    whole: ScriptLog | None = None
    nudged: ScriptLog | None = None
    single: ScriptLog | None = None
    doubled: ScriptLog | None = None
    no_whole: str = ""
    failed: tuple[str, str] | None = None
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """The updates that all ranks made."""
        return min((len(log.updates) for log in self.ranks), default=0)

    def fact(self, name: str) -> bool:
        """Say whether any rank has noted this."""
        return any(log.facts.get(name) for log in self.ranks)

    def calls(self, *verbs: str) -> bool:
        """Say whether the script calls one of these verbs."""
        return any(verb in log.verbs for log in self.ranks for verb in verbs)
