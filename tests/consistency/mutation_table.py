"""Run mutants and print the table of docs/verify.md.

python tests/consistency/mutation_table.py results.json torch:mpi tf:mpi keras:mpi [-- NAME …]

Results are added to those in the file; a mutant that is there already is not run again. A column of its own for
another environment is named before the framework: keras2=keras:mpi, in the environment with Keras 2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]

from mutants import MUTANTS  # noqa: E402
from ranks import Combination  # noqa: E402
from verify_runs import MUTANTS_FILE, run_verify  # noqa: E402


def main(arguments: list[str]) -> None:
    path = Path(arguments[0])
    columns = arguments[1:]
    names = list(MUTANTS)
    if "--" in columns:
        names, columns = columns[columns.index("--") + 1 :], columns[: columns.index("--")]
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for column in columns:
        label, _, pair = column.rpartition("=")
        framework, engine = pair.split(":")
        for name in names:
            if framework in MUTANTS[name].frameworks and name not in results.get(label or framework, {}):
                found = look(name, Combination(framework, engine, 2))
                results.setdefault(label or framework, {})[name] = found
                path.write_text(json.dumps(results, indent=2))
                print(label or framework, name, MUTANTS[name].step, found, flush=True)
    print(table(results))


def look(name: str, combination: Combination) -> dict[str, Any]:
    """Return the step that the tool names, and its words."""
    shared = MUTANTS[name].step == "pin"
    report, finished = run_verify(f"{MUTANTS_FILE}:{name}", combination, "--steps", "6", threads_shared=shared)
    if report is None:
        return {"step": None, "found": finished.stderr.strip().splitlines()[-1], "seconds": finished.seconds}
    fault = report["fault"] or {"step": None, "found": report["error"] or "nothing"}
    return {"step": fault["step"], "found": fault["found"], "seconds": round(finished.seconds, 1)}


def table(results: dict[str, Any]) -> str:
    """Return the results in Markdown."""
    head = ["fault", "step", *(f"named in {column}" for column in results), "words"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, mutant in MUTANTS.items():
        found = [results[column].get(name) for column in results]
        named = ["-" if entry is None else str(entry["step"]) for entry in found]
        words = next((entry["found"] for entry in found if entry is not None), "")
        lines.append(f"| {name.replace('_', ' ')} | {mutant.step} | {' | '.join(named)} | {words} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(sys.argv[1:])
