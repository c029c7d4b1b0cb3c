"""What cannot be equal in runs with several processes, and what is not looked at."""

from __future__ import annotations

from collections.abc import Iterator

from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.shard_contract import own_data


def exemptions(seen: Runs) -> list[str]:
    """Return what cannot be equal, and why."""
    found = []
    if seen.local_statistics:
        found.append(
            f"BatchNorm ({', '.join(seen.local_statistics[:3])}): each rank normalises by its own batch, as on N "
            "machines; compared with the twin, which keeps statistics for each rank, not with the global batch"
        )
    if seen.replayed:
        words = "random numbers: ranks draw numbers of their own, as they should, and the twin draws them again"
        found.append(words + "; switched off where training on global batches is compared" * (seen.quiet is not None))
    if seen.random:
        found.append("random numbers that cannot be switched off: training on global batches is not compared")
    if seen.weighs_classes:
        found.append(
            "weights of classes: the loss divides by their sum in each batch, and ranks' means are averaged by "
            "samples; compared with the twin, which does the same, not with the global batch"
        )
    if not seen.on_cpu:
        found.append(
            "GPUs: verified with deterministic algorithms and without TensorFloat-32, which is slower than training"
        )
    found.extend(own_data(seen))
    return found


def left_out(seen: Runs) -> Iterator[Check]:
    """Yield what the runs do without, and was not checked therefore."""
    if seen.known["precision"] != "fp32":
        words = "verified in full precision, since rounding would hide faults"
        yield Check("distribute", f"precision {seen.known['precision']}", None, words)
    if seen.known["compression"] != "none":
        words = "verified without, since rounding would hide faults"
        yield Check("distribute", f"compression {seen.known['compression']}", None, words)
    if seen.dropout and not seen.replayed:
        yield Check("distribute", "dropout", None, "verified with dropout switched off")
    if seen.known["observers"]:
        yield Check("recipe", "observers of your own", None, "left out of the runs")
