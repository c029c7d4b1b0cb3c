"""Learning rates of Keras optimizers: schedules and warm-up."""
