"""docs/cases.md has a row for every entry, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRIES = {
    "a": (1, 2, 4, 6, 8, 9),
    "b": (1, 2, 3, 6, 8, 9, 10),
    "c": (1, 2, 3, 6, 8, 9),
    "d": (1, 3, 5, 7, 9, 11, 12, 14, 15, 17, 19, 20, 21, 22),
    "e": (1, 3, 4, 6),
    "f": (1, 4, 7, 8, 9, 10),
    "g": (1, 2, 4, 6, 7),
    "h": (1, 3, 4),
    "l": (8,),
    "r": tuple(range(1, 43)),
    # S06 is seen on GPUs alone, S12 in benchmarks/watch_scale.py
    "s": (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18),
}


def rows():
    """Return the tests that each row of the tables names, by the row's first cell."""
    found = {}
    for line in (ROOT / "docs" / "cases.md").read_text().splitlines():
        if line.startswith("|") and "`test_" in line:
            found[line.split("|")[1].strip().lower()] = set(re.findall(r"`(test_\w+)`", line))
    return found


def existing(paths):
    return {name for path in paths for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)}


def test_every_test_of_the_tables_exists():
    assert set().union(*rows().values()) - existing((ROOT / "tests").rglob("test_*.py")) == set()


def test_every_entry_has_a_row_whose_tests_carry_its_name():
    table = rows()
    for letter, numbers in ENTRIES.items():
        for number in numbers:
            entry = f"{letter}{number:02}"
            assert all(f"_{entry}_" in name for name in table[entry]), entry


def test_the_tables_name_every_test_of_the_suite_of_cases_and_traps():
    named = set().union(*rows().values())
    folder = ROOT / "tests" / "consistency"
    found = {name for name in existing(folder.glob("test_*.py")) if re.match(r"test_([a-hrs]\d\d|trap)_", name)}
    assert found - named == set()
