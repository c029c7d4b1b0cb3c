"""torch_words_serial.py on any number of processes: hvdkit run -np 2 torch_words_hvdkit.py [BATCH] [LR]."""

import itertools
import sys
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import hvdkit.torch as hk

BATCH = int(sys.argv[1]) if len(sys.argv) > 1 else 32
LR = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
LENGTH = 24


class Windows(IterableDataset):
    """Pairs of a window and the same moved on by one, while the text lasts."""

    def __iter__(self):
        text = itertools.islice((code for topic in topics.values() for code in topic.encode()), 10_000)
        while len(window := bytes(itertools.islice(text, LENGTH + 1))) > LENGTH:
            codes = torch.tensor(list(window)) % 128
            yield codes[:-1], codes[1:]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.recurrent = nn.GRU(16, 32, batch_first=True)
        self.head = nn.Linear(32, 128)

    def forward(self, codes):
        return self.head(self.recurrent(self.embedding(codes))[0])


hk.init()
hk.pin()
torch.manual_seed(0)
batches = hk.shard(DataLoader(Windows(), batch_size=BATCH), BATCH)
model = Model()
lr = hk.scale_lr(LR)
optimizer = hk.distribute(torch.optim.SGD(model.parameters(), lr), model)
hk.broadcast(model, optimizer)

for epoch in range(2):
    total, count = 0.0, 0
    for codes, following in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total, count = total + loss.item() * batches.count, count + batches.count
    mean = hk.average(total / count, count)
    print(f"epoch {epoch + 1}: loss {mean:.6f}")

hk.save("weights.pt", model, optimizer)
