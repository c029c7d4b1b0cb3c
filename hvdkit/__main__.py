"""``python -m hvdkit``: the same as the command ``hvdkit``."""

from hvdkit.cli import main

main()
