"""What ``hvdkit.tf`` and ``hvdkit.keras`` share: Keras models, optimizers and ``tf.data``, in Keras 2 and 3."""
