"""Starting N processes: the command ``hvdkit run``, the function ``hvdkit.run`` and the child module of each rank."""
