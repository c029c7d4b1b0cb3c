"""Run faults and print their table.

python -m tests.faults --table [--frameworks torch,tf,keras] [--engines horovod,torch,mpi] [--json FILE] [NAME …]

Every fault is planted into a real training on two processes, started by ``hvdkit run``. Results are added to those in
the file; what is there already is not run again. Full and read-only disks need the right to mount.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "support"), str(TESTS.parent)]

import signals  # noqa: E402

from faults.catalogue import ALL, FAULTS  # noqa: E402
from faults.jobs import run  # noqa: E402
from faults.kills import KILLS, WRITERS_KILLED  # noqa: E402
from hvdkit.engines.table import serving  # noqa: E402


@click.command()
@click.option("--table", is_flag=True, help="Print the table in Markdown.")
@click.option("--frameworks", default=",".join(ALL), show_default=True)
@click.option("--engines", default="horovod,torch,mpi", show_default=True)
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Keep results here.")
@click.argument("names", nargs=-1)
def main(table: bool, frameworks: str, engines: str, file: Path | None, names: tuple[str, ...]) -> None:
    """Run faults; exit with 1 if one is not taken as it should be."""
    signals.hear_all()
    results: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    columns = _columns(frameworks.split(","), engines.split(","))
    for name in names or (*FAULTS, *KILLS):
        for column in _with(name, columns):
            if column in results.get(name, {}):
                continue
            framework, engine = column.split("/")
            found = run(name, framework, engine) if name in FAULTS else KILLS[name](framework, engine)
            results.setdefault(name, {})[column] = dataclasses.asdict(found)
            click.echo(f"{name} {column} {results[name][column]}", err=True)
            if file is not None:
                file.write_text(json.dumps(results, indent=2))
    if table:
        click.echo(markdown(results))
    sys.exit(any(entry["problem"] for found in results.values() for entry in found.values()))


def _columns(frameworks: list[str], engines: list[str]) -> list[str]:
    """Return what goes together, as ``torch/mpi``."""
    served = {
        framework: [spec.name for spec in serving("torch" if framework == "torch" else "tf")] for framework in ALL
    }
    return [f"{framework}/{engine}" for framework in frameworks for engine in engines if engine in served[framework]]


def _with(name: str, columns: list[str]) -> list[str]:
    """Return the columns in which a fault can happen."""
    if name in FAULTS:
        return [column for column in columns if column.split("/")[0] in FAULTS[name].frameworks]
    # the writer knows of no framework
    return columns[:1] if name == WRITERS_KILLED else columns


def markdown(results: dict[str, Any]) -> str:
    """Return the table: seconds by framework and engine, exit codes, the last line, and what is lost or left."""
    columns = list(dict.fromkeys(column for found in results.values() for column in found))
    head = ["fault", *columns, "exit code", "last line", "lost", "left behind"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in (*FAULTS, *KILLS):
        found = results.get(name, {})
        if not found:
            continue
        words = FAULTS[name].words if name in FAULTS else name
        entries = [found[column] for column in columns if column in found]
        seconds = [_seconds(found.get(column)) for column in columns]
        codes = ", ".join(dict.fromkeys(str(entry["code"]) for entry in entries))
        lost = ", ".join(dict.fromkeys(entry["lost"] for entry in entries if entry["lost"])) or "nothing"
        left = str(sum(entry["left"] for entry in entries) or "nothing")
        lines.append(f"| {' | '.join([words, *seconds, codes, _last(entries), lost, left])} |")
    return "\n".join(lines)


def _seconds(entry: dict[str, Any] | None) -> str:
    if entry is None:
        return "-"
    taken = "at once" if entry["seconds"] is None else f"{entry['seconds']:.1f} s"
    if entry["code"] == 0:
        taken = "goes on"
    return f"**{taken}: {entry['problem']}**" if entry["problem"] else taken


def _last(entries: list[dict[str, Any]]) -> str:
    return entries[0]["last"].replace("|", "\\|") if entries[0]["code"] else ""


if __name__ == "__main__":
    main()
