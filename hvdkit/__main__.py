"""``python -m hvdkit`` is the ``hvdkit`` command."""

from hvdkit.tools.cli import main

main()
