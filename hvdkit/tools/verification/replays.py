"""Which runs one process makes of the batches that the ranks have seen, and how far each goes."""

from __future__ import annotations

from typing import Any

from hvdkit.tools.verification.layout import Layout
from hvdkit.tools.verification.randomness import HIDDEN, KEPT, REPLAYED


def sums_alike(framework: str, size: int, known: dict[str, Any]) -> bool:
    """Say whether ranks and twin add up the same numbers in the same order, bit for bit."""
    return framework == "torch" and size == 2 and known["on_cpu"] and not known["reordered"] | known["synchronised"]


def local_statistics(known: dict[str, Any]) -> list[str]:
    """Return the layers whose statistics are each rank's own."""
    if known["synchronised"]:
        return []
    return [name for name, kind in known["layers"] if "BatchNorm" in kind and "Sync" not in kind]


def replays(framework: str, layout: Layout, known: dict[str, Any]) -> dict[str, int]:
    """Return the updates of each run by its name.

    The twin does all. What rounding makes of it grows from update to update, unless the twin is the ranks' equal bit
    for bit. Whether parts make the whole, the first epoch shows, with its last batch.
    """
    alike = sums_alike(framework, layout.size, known)
    made = {"twin": layout.updates, "rounded": layout.steps if alike else layout.updates}
    if known["synchronised"]:
        return {**made, "whole": layout.updates}
    if local_statistics(known) or known["randomness"] in (KEPT, HIDDEN):
        # they differ, and may
        return {**made, "whole": 0}
    return {**made, **({"quiet": layout.steps} if known["randomness"] == REPLAYED else {}), "whole": layout.steps}
