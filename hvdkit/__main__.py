"""``python -m hvdkit`` is the ``hvdkit`` command."""

from hvdkit.cli import main

main()
