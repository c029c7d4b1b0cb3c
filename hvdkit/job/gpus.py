"""The GPUs that CUDA shows to this process, found without starting a framework on them."""

from __future__ import annotations

import re
import subprocess
from glob import glob

from hvdkit.process.environment import cuda_visible_devices

_PATIENCE = 60.0


def gpus_shown() -> list[str]:
    """Return the UUID of each GPU that CUDA shows, in its order; ``""`` for one whose UUID is not known."""
    gpus, chosen = _gpus_of_node(), cuda_visible_devices()
    if chosen is None or not gpus:
        return gpus
    shown = []
    for entry in chosen.split(","):
        gpu = _named(gpus, entry.strip())
        if gpu is None:  # CUDA reads no further
            break
        shown.append(gpu)
    return shown


def _gpus_of_node() -> list[str]:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return [""] * len(glob("/dev/nvidia[0-9]*"))
    return re.findall(r"^GPU \d+: .*\(UUID: (GPU-[^)]+)\)", listed.stdout, re.MULTILINE)


def _named(gpus: list[str], entry: str) -> str | None:
    """Return the GPU that an entry of CUDA_VISIBLE_DEVICES names by its number or by the beginning of its UUID."""
    if entry.isdecimal():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if entry.startswith(("GPU-", "MIG-")):
        return next((gpu for gpu in gpus if gpu.startswith(entry)), entry)
    return None
