"""Step 5 in Keras: gradients, reduced as one flat tensor."""
