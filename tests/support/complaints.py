"""What hvdkit refuses, as text that ranks can send back."""

from __future__ import annotations

from typing import Any

from hvdkit.errors import HvdkitError


def complaint(call: Any, *args: Any, **kwargs: Any) -> str:
    """Return hvdkit's error as 'class: message', empty if there is none."""
    try:
        call(*args, **kwargs)
    except HvdkitError as error:
        return f"{type(error).__name__}: {error}"
    return ""
