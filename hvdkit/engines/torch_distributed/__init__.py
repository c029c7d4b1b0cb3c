"""Engine ``torch``: torch.distributed."""
