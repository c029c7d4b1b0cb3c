"""What the parent tells processes that are under way, in files."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

_SECONDS = 0.02


def give(folder: str, name: str, value: Any) -> None:
    """Write what others wait for."""
    hidden = Path(folder, f".{name}.order")
    hidden.write_bytes(pickle.dumps(value))
    # there at once and as a whole
    hidden.rename(Path(folder, f"{name}.order"))


def take(folder: str, name: str) -> Any:
    """Wait for what is given."""
    path = Path(folder, f"{name}.order")
    while not path.exists():
        time.sleep(_SECONDS)
    return pickle.loads(path.read_bytes())
