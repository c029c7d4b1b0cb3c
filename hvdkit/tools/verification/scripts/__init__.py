"""``hvdkit verify`` for a script of the user's own, with the eight lines."""
