"""What the script shows: its lines are kept while they pass."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)|\bnan\b|\binf\b")
_OWN = "hvdkit:"


class Keeping:
    """A text stream that keeps complete lines."""

    def __init__(self, stream: Any, lines: list[str]) -> None:
        self._stream, self._lines, self._rest = stream, lines, ""

    def write(self, text: str) -> int:
        """Write, and keep."""
        *complete, self._rest = (self._rest + text).split("\n")
        self._lines += [line for line in complete if line.strip() and not line.startswith(_OWN)]
        self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def template(line: str) -> str:
    """Return a line with a mark in place of each number."""
    return _NUMBER.sub("#", line)


def numbers(line: str) -> list[tuple[float, float]]:
    """Return the numbers of a line, each with half a unit of its last place; whole numbers have none."""
    return [(float(text), _half_unit(text)) for text in _NUMBER.findall(line)]


def _half_unit(text: str) -> float:
    digits, _, exponent = text.lower().partition("e")
    places = len(digits.partition(".")[2]) if "." in digits else 0
    scale = 10.0 ** (int(exponent) if exponent else 0)
    return 0.5 * 10.0**-places * scale if places else 0.0
