"""What ``hvdkit verify`` has found: checks, exemptions, a table and JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        step: The one of the eight steps whose contract it is.
        claim: What must hold.
        passed: Whether it does; None if it was not made.
        found: What was seen, in words; on a failure the first parameter and update at which it shows.
        size: The size of the difference, where there is one.
        limit: The largest that is right.
        source: Where the limit comes from.
        parameter: The first parameter, sample or metric that differs.
        update: The first update (from 1, 0 for the start) at which it differs.
        sizes, limits: The size and its limit after every update, where they were taken.
    """

    step: str
    claim: str
    passed: bool | None
    found: str
    size: float | None = None
    limit: float | None = None
    parameter: str | None = None
    update: int | None = None
    source: str | None = None
    sizes: tuple[float, ...] = ()
    limits: tuple[float, ...] = ()

    def limit_in_words(self) -> str:
        """Return the limit and where it comes from; empty where there is none."""
        if self.limit is None:
            return ""
        if self.limit == 0 and self.source is None:
            return "0"
        return f"{self.limit:.1e}" + (f": {self.source}" if self.source else "")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; a size that is no finite number, which JSON lacks, is None."""
        size = self.size if self.size is not None and math.isfinite(self.size) else None
        sizes = [value if math.isfinite(value) else None for value in self.sizes]
        return {**asdict(self), "size": size, "sizes": sizes, "limits": list(self.limits)}


@dataclass
class Report:
    """The outcome of a verification.

    Attributes:
        recipe, framework, engine, processes, updates, dtype: What was verified.
        checks: In the order of the eight steps' effects.
        exemptions: What cannot be equal, and why.
        error: How a run failed, if one did.
    """

    recipe: str
    framework: str
    engine: str
    processes: int
    updates: int
    dtype: str
    checks: list[Check] = field(default_factory=list)
    exemptions: list[str] = field(default_factory=list)
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether everything holds that was checked."""
        return self.error is None and all(check.passed is not False for check in self.checks)

    @property
    def not_checked(self) -> list[str]:
        """What was not looked at, each with the reason."""
        return [f"{check.claim} ({check.found})" for check in self.checks if check.passed is None]

    @property
    def fault(self) -> Check | None:
        """The first check that failed: its step is the one at fault."""
        return next((check for check in self.checks if check.passed is False), None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts."""
        fault = self.fault
        content = {**asdict(self), "checks": [check.as_dict() for check in self.checks]}
        return {
            **content,
            "passed": self.passed,
            "fault": None if fault is None else fault.as_dict(),
            "not_checked": self.not_checked,
            "verdict": self.verdict(),
        }

    def as_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(self.as_dict(), indent=2)

    def show(self, console: Console) -> None:
        """Print a table, the exemptions, what was not checked, and the verdict."""
        table = Table(title=self.title(), title_justify="left")
        for heading in ("", "step", "what must hold", "found", "limit"):
            table.add_column(heading)
        marks = {True: "[green]ok[/green]", False: "[red]FAILS[/red]", None: "-"}
        for check in self.checks:
            table.add_row(
                marks[check.passed], check.step, *map(escape, (check.claim, check.found, check.limit_in_words()))
            )
        if self.checks:
            console.print(table)
        for exemption in self.exemptions:
            console.print(f"exempt: {exemption}", markup=False)
        for entry in self.not_checked:
            console.print(f"not checked: {entry}", markup=False)
        console.print(self.verdict(), markup=False)

    def title(self) -> str:
        """Return what was verified."""
        runs = f"{self.processes} processes, engine {self.engine}"
        return f"{self.recipe}: {self.framework}, {runs}, {self.updates} updates, {self.dtype}"

    def success(self) -> str:
        """Return what holds if no check fails."""
        return f"{self.processes} processes compute what one would"

    def verdict(self) -> str:
        """Return the outcome as one line."""
        if self.error is not None:
            return f"failed: {self.error}"
        fault = self.fault
        if fault is not None:
            return f"failed: step {fault.step!r} is at fault: {fault.found}"
        left_out = "; ".join(check.claim for check in self.checks if check.passed is None)
        return f"verified{', but for ' if left_out else ''}{left_out}: {self.success()}"
