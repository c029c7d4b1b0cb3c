"""Ten legitimate recipes in torch, each with several things that ``hvdkit verify`` must not take for faults.

hvdkit verify tests/verification/gallery/torch_recipes.py:vae --framework torch -np 2
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torchmetrics
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, WeightedRandomSampler
from torch_gallery_data import Pictures, Sentences, Shuffled, arrays, labels, normal, padded

import hvdkit


def base(**changes: Any) -> hvdkit.Recipe:
    given = {"optimizer": hvdkit.SGD(lr=0.05, momentum=0.9), "batch_size": 4, "epochs": 2, "seed": 3}
    return hvdkit.Recipe(**(given | changes))


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.2), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(54, 3)

    def forward(self, x: Any) -> Any:
        return self.head(functional.dropout(self.features(x), 0.3, self.training))


def cnn() -> hvdkit.Recipe:
    """BatchNorm, dropout as a layer and as a function, accumulation, a repeated sample, metrics of torchmetrics."""
    return base(
        model=Cnn,
        data=lambda: arrays((normal(8, 8, 3), labels(3))),
        metrics=("accuracy", torchmetrics.classification.MulticlassF1Score(3)),
        distribute=hvdkit.Distribute(accumulate=2),
        shard=hvdkit.Shard(uneven="pad"),
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, 2, dropout=0.4, batch_first=True)
        self.gru = nn.GRU(5, 5, 2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.gru(self.lstm(self.embedding(x))[0])[0][:, -1])


def recurrent() -> hvdkit.Recipe:
    """LSTM and GRU with dropout between layers, a scheduler by epochs, and the broadcast from another rank."""
    return base(
        model=Recurrent,
        data=lambda: arrays((labels(11, 7), labels(3))),
        optimizer=hvdkit.Adam(lr=0.01),
        metrics=("accuracy",),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        scale_lr=hvdkit.ScaleLR("linear", warmup_epochs=1),
        broadcast=hvdkit.Broadcast(root=1),
    )


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.inputs = nn.Linear(3, 8)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        hidden = functional.dropout(self.inputs(x), p=0.1, training=self.training)
        return self.head(self.encoder(hidden).mean(1))


def decayed(parameters: Any) -> Any:
    parameters = list(parameters)
    return torch.optim.AdamW(
        [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0, "lr": 0.002},
        ],
        lr=0.01,
    )


def transformer() -> hvdkit.Recipe:
    """Dropout in attention, layers and functions, groups with rates of their own, a scheduler by updates, smoothing."""
    return base(
        model=Transformer,
        data=lambda: arrays((normal(5, 3), labels(4))),
        optimizer=decayed,
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        scheduler=hvdkit.Scheduler(
            lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * steps), every="step"
        ),
    )


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 6, sparse=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.words(x).mean(1))


def sparse() -> hvdkit.Recipe:
    """Sparse gradients, classes with weights, an incomplete batch left out, clipping."""
    return base(
        model=Bag,
        data=lambda: arrays((labels(13, 5), labels(3))),
        loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0, 0.5])),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        distribute=hvdkit.Distribute(clip_norm=0.5),
        shard=hvdkit.Shard(uneven="drop"),
        metrics=("accuracy",),
    )


class Factors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(9, 4, sparse=True), nn.Embedding(7, 4, sparse=True)

    def forward(self, x: Any) -> Any:
        return (self.users(x["user"]) * self.items(x["item"])).sum(1)


def factors() -> hvdkit.Recipe:
    """Two sparse tables with SparseAdam, a dict of inputs, ``steps_per_epoch`` on arrays, a metric of one's own."""

    def mean_error(outputs: Any, targets: Any) -> Any:
        return (outputs - targets).abs().mean()

    return base(
        model=Factors,
        data=lambda: arrays(({"user": labels(9), "item": labels(7)}, normal())),
        loss="mean_squared_error",
        optimizer=lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.02),
        metrics=(mean_error, torchmetrics.MeanSquaredError()),
        steps_per_epoch=9,
    )


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.frozen = nn.Linear(8, 8)
        self.body = nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.words.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(torch.tanh(self.frozen(self.words(x))))[0]).transpose(1, 2)


def slower_body(parameters: Any) -> Any:
    parameters = [p for p in parameters if p.requires_grad]
    return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.3}], lr=0.1, momentum=0.9)


def language_model() -> hvdkit.Recipe:
    """Tied weights, frozen layers, groups with rates of their own, targets of one axis more, a schedule."""
    return base(
        model=Tied,
        data=lambda: arrays((labels(12, 6), np.roll(labels(12, 6), -1, axis=1))),
        loss=nn.CrossEntropyLoss(),
        optimizer=slower_body,
        schedule=lambda epoch: 0.5 ** int(epoch),
        metrics=("accuracy",),
    )


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 6), nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.1))

    def forward(self, x: Any) -> Any:
        mean, spread = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(spread) * torch.exp(0.5 * spread)
        return {"image": self.decoder(code), "mean": mean, "spread": spread}


def vae_loss(outputs: Any, targets: Any) -> Any:
    mean, spread = outputs["mean"], outputs["spread"]
    distance = (spread.exp() + mean**2 - 1 - spread).sum(1).mean() / 2
    return functional.mse_loss(outputs["image"], targets) + 0.1 * distance


def vae() -> hvdkit.Recipe:
    """Random numbers in the forward pass that nothing switches off, a dict of outputs, a loss that is a function."""
    return base(model=Vae, data=lambda: arrays((normal(6), normal(6))), loss=vae_loss, optimizer=hvdkit.Adam(lr=0.01))


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 8), nn.ReLU())
        self.box, self.kind = nn.Linear(8, 4), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        hidden = self.body(x)
        return self.box(hidden), self.kind(hidden)


def detector_loss(outputs: Any, targets: Any) -> Any:
    box, kind = outputs
    return functional.l1_loss(box, targets["box"]) + functional.cross_entropy(kind, targets["kind"])


def detector(workers: int = 2) -> hvdkit.Recipe:
    """A data set of one's own with random augmentation, loader workers, several outputs and targets."""
    return base(
        model=Detector,
        data=lambda: hvdkit.Data(Pictures(51, 1, True), Pictures(13, 2, False)),
        loss=detector_loss,
        shard=hvdkit.Shard(workers=workers),
    )


def detector_without_workers() -> hvdkit.Recipe:
    return detector(0)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 6), nn.Linear(3, 6)
        self.head = nn.Sequential(nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: Any) -> Any:
        return self.head(self.left(x[0]) + self.right(x[1]))


def synchronised() -> hvdkit.Recipe:
    """BatchNorm over the global batch with a last batch of one sample on a rank, a regression on several inputs."""
    return base(
        model=TwoInputs,
        data=lambda: arrays(((normal(4), normal(3, seed=8)), normal(1, seed=9))),
        loss="mean_squared_error",
        distribute=hvdkit.Distribute(sync_batchnorm=True),
    )


def stream() -> hvdkit.Recipe:
    """A stream that is shuffled anew whenever it is read, and validation data that are a stream."""
    return base(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 4)),
        data=lambda: hvdkit.Data(Shuffled(60), Shuffled(13)),
        steps_per_epoch=6,
        metrics=("accuracy",),
    )


class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(9, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Any) -> Any:
        lengths = (x > 0).sum(1).clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.body(packed)[1][0][0])


def loader(samples: int, sampler: Any) -> Any:
    return DataLoader(Sentences(samples), 4, sampler=sampler, collate_fn=padded)


def sentences() -> hvdkit.Recipe:
    """Loaders of one's own: a sampler that draws with replacement, and sentences padded to the longest of a batch."""
    return base(
        model=Padded,
        data=lambda: hvdkit.Data(loader(51, WeightedRandomSampler(torch.linspace(0.1, 1.0, 51), 51)), loader(13, None)),
        metrics=("accuracy",),
    )
