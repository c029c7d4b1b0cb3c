"""Steps 6 and 7 in Keras: variables of models and optimizers, and their files."""
