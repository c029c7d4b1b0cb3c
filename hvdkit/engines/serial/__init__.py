"""Engine ``serial``: one process."""
