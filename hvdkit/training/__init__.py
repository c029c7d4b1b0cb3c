"""A training run, as far as it is the same in every framework."""
