"""Updates as CUDA graphs: recorded once, and started anew for every batch of the same shape."""
