"""Step 3 in Keras: ``tf.data`` sets and the weights of samples."""
