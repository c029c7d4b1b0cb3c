"""Models and metrics for the tests of hvdkit.keras, in a module that Keras can find again."""

from __future__ import annotations

import keras
import keras_runs as runs

if hasattr(keras, "ops"):
    from keras.ops import max as largest
    from keras.ops import maximum
else:
    from tensorflow import maximum
    from tensorflow import reduce_max as largest


@keras.utils.register_keras_serializable("tests")
class OwnStep(keras.Model):
    """A model with a custom step: its own gradients, clipped, and its own call of the optimizer."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="tanh")
        self.last = keras.layers.Dense(runs.CLASSES)

    def call(self, inputs):
        return self.last(self.hidden(inputs))

    def train_step(self, *given):
        return getattr(self, f"step_on_{runs.library()}")(*given)

    def step_on_tensorflow(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            loss = runs.cross_entropy()(y, self(x, training=True))
        variables = self.trainable_variables
        gradients = [tf.clip_by_value(gradient, -10.0, 10.0) for gradient in tape.gradient(loss, variables)]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}

    def step_on_torch(self, data):
        import torch

        x, y = data
        self.zero_grad()
        loss = runs.cross_entropy()(y, self(x, training=True))
        loss.backward()
        variables = self.trainable_variables
        gradients = [torch.clamp(variable.value.grad, -10.0, 10.0) for variable in variables]
        with torch.no_grad():
            self.optimizer.apply(gradients, variables)
        return {"loss": loss.detach()}

    def step_on_jax(self, state, data):
        import jax

        trained, others, slots, metrics = state
        x, y = data

        def loss_of(arrays):
            outputs, changed = self.stateless_call(arrays, others, x)
            return runs.cross_entropy()(y, outputs), changed

        (loss, others), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
        gradients = [gradient.clip(-10.0, 10.0) for gradient in gradients]
        trained, slots = self.optimizer.stateless_apply(slots, gradients, trained)
        return {"loss": loss}, (trained, others, slots, metrics)


class Largest(keras.metrics.Metric):
    """A metric whose state cannot be added up."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(maximum(self.value, largest(y_pred)))

    def result(self):
        return self.value + 0.0


def noisy_net():
    """Return a net with dropout and BatchNorm."""
    layers = keras.layers
    inputs = keras.Input((runs.FEATURES,))
    x = layers.BatchNormalization(momentum=0.5)(layers.Dense(8)(inputs))
    return keras.Model(inputs, layers.Dense(runs.CLASSES)(layers.Dropout(0.5, seed=3)(x)))


class Adversaries(keras.Model):
    """Sub-models with an optimizer each, a ``train_step`` of their own and no ``call``, as GANs have it.

    A row holds a real sample and, behind it, the noise for a false one.
    """

    def __init__(self):
        super().__init__()
        layers = keras.layers
        # the input layers come first, so that all parts are built
        self.judge = keras.Sequential([keras.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(1)])
        self.maker = keras.Sequential([keras.Input((2,)), layers.Dense(6, activation="tanh"), layers.Dense(4)])

    def compile(self, d_optimizer, g_optimizer, loss_fn, **kwargs):
        super().compile(**kwargs)
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    def judging(self, rows):
        real, false = self.judge(rows[:, :4]), self.judge(self.maker(rows[:, 4:]))
        return self.loss_fn(real * 0 + 1, real) + self.loss_fn(false * 0, false)

    def making(self, rows):
        false = self.judge(self.maker(rows[:, 4:]))
        return self.loss_fn(false * 0 + 1, false)

    def train_step(self, rows):
        rows = rows[0] if isinstance(rows, (list, tuple)) else rows
        shown = {}
        turns = ((self.judging, self.judge, self.d_optimizer), (self.making, self.maker, self.g_optimizer))
        for loss_of, part, optimizer in turns:
            loss, gradients = getattr(self, f"gradients_on_{runs.library()}")(loss_of, rows, part)
            optimizer.apply_gradients(zip(gradients, part.trainable_variables, strict=True))
            shown[f"{part.name.split('_')[0]}_{len(shown)}_loss"] = loss
        return shown

    def gradients_on_tensorflow(self, loss_of, rows, part):
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(rows)
        return loss, tape.gradient(loss, part.trainable_variables)

    def gradients_on_torch(self, loss_of, rows, part):
        import torch

        loss = loss_of(rows)
        return loss.detach(), torch.autograd.grad(loss, [variable.value for variable in part.trainable_variables])
