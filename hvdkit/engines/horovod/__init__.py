"""Engine ``horovod``: the reference."""
