"""Models and metrics for the tests of hvdkit.keras, in a module that Keras can find again."""

from __future__ import annotations

import keras
import keras_runs as runs
import tensorflow as tf


@keras.utils.register_keras_serializable("tests")
class OwnStep(keras.Model):
    """A model with a step of its own: its own tape, clipped gradients, apply_gradients."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.last = keras.layers.Dense(runs.CLASSES)

    def call(self, inputs):
        return self.last(self.hidden(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = runs.cross_entropy()(y, self(x, training=True))
        variables = self.trainable_variables
        gradients = [tf.clip_by_value(gradient, -10.0, 10.0) for gradient in tape.gradient(loss, variables)]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


class Largest(keras.metrics.Metric):
    """A metric whose state cannot be added up."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(tf.maximum(self.value, tf.reduce_max(y_pred)))

    def result(self):
        return tf.convert_to_tensor(self.value)


def noisy_net():
    """Return a net with dropout and BatchNorm."""
    layers = keras.layers
    inputs = keras.Input((runs.FEATURES,))
    x = layers.BatchNormalization(momentum=0.5)(layers.Dense(8)(inputs))
    return keras.Model(inputs, layers.Dense(runs.CLASSES)(layers.Dropout(0.5, seed=3)(x)))
