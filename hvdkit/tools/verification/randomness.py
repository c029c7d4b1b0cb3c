"""Kinds of randomness in a training pass.

What it draws can be drawn again (``replayed``; ``kept`` if it cannot be switched off), or not, but can be switched off
(``frozen``), or neither (``hidden``).
"""

from __future__ import annotations

NONE, REPLAYED, KEPT, FROZEN, HIDDEN = "none", "replayed", "kept", "frozen", "hidden"
