"""Setuptools 82 has no pkg_resources: nothing here may import it, nor what is built here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("hvdkit", "examples", "benchmarks", "tests")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(str(node.module).split(".")[0])
    return names


@pytest.mark.parametrize("folder", FOLDERS)
def test_a09_no_file_imports_pkg_resources(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert not [path for path in files if "pkg_resources" in imported(path)]


def test_a09_the_search_finds_an_import(tmp_path: Path) -> None:
    guilty = tmp_path / "guilty.py"
    guilty.write_text("def f():\n    from pkg_resources import require\n")
    assert "pkg_resources" in imported(guilty)


def test_a09_the_part_of_horovod_that_builds_and_runs_does_not_import_it(tree: Path) -> None:
    files = [tree / "setup.py", *(tree / "cmake").rglob("*.py")]
    for folder in ("common", "runner", "torch", "tensorflow"):
        files += (tree / "horovod" / folder).rglob("*.py")
    assert len(files) > 50
    assert not [path for path in files if "pkg_resources" in imported(path)]
