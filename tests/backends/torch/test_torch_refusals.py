"""What torch refuses, in one line and before training; and what a start without the right parts says."""

from __future__ import annotations

import pytest
from ranks import Combination, launch_fresh, on, unavailable

import hvdkit

PAIR = on("torch", engines=("torch",))
ALONE = on("torch", engines=("serial",), sizes=(1,))
ENDS = ["softmax", "sigmoid", "softmax_in_forward"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("ranks", [*ALONE, *PAIR], indirect=True)
def test_a_model_that_ends_in_probabilities_is_refused_with_the_fix(ranks, end):
    def body():
        import torch
        from torch import nn
        from torch_cases import complaint, mlp
        from torch_recipes import run

        class Inside(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = mlp(torch.float32)

            def forward(self, x):
                return self.net(x).softmax(1)

        models = {
            "softmax": lambda: nn.Sequential(mlp(torch.float32), nn.Softmax(1)),
            "sigmoid": lambda: nn.Sequential(mlp(torch.float32), nn.Sigmoid()),
            "softmax_in_forward": Inside,
        }
        return complaint(run, model=models[end])

    for text in ranks.run(body):
        assert text == (
            "ModelError: the model's outputs are probabilities, but this loss takes logits; "
            "remove the softmax or sigmoid at its end"
        )


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_probabilities_are_fine_where_the_loss_takes_them(ranks):
    def body():
        import numpy as np
        import torch
        from torch import nn
        from torch_recipes import run

        x = np.random.default_rng(0).normal(size=(16, 6)).astype(np.float32)
        targets = hvdkit.Data(train=(x, np.full(16, 0.5, np.float32)))
        model = lambda: nn.Sequential(nn.Linear(6, 1), nn.Sigmoid())  # noqa: E731
        named = run(model=model, data=targets, loss="mean_squared_error", metrics=(), epochs=1)
        own = run(model=lambda: nn.Sequential(nn.Linear(6, 4), nn.Softmax(1)), epochs=1,
                  loss=lambda outputs, y: torch.nn.functional.nll_loss(outputs.log(), y))  # fmt: skip
        module = run(loss=nn.CrossEntropyLoss(label_smoothing=0.1), epochs=1)
        return [trainer.history.epochs[0]["loss"] > 0 for trainer in (named, own, module)]

    assert ranks.run(body) == [[True, True, True]]


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_models_and_optimizers_that_cannot_be_distributed_are_refused(ranks):
    def body():
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch_cases import complaint, mlp

        import hvdkit.torch as hk

        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapped = complaint(hk.distribute, optimizer, DistributedDataParallel(model))
        hk.distribute(optimizer, model)
        other = torch.optim.SGD(mlp().parameters(), lr=0.1)
        return [
            wrapped,
            complaint(hk.distribute, optimizer, model),
            complaint(hk.distribute, model),
            complaint(hk.distribute, other, compression="bf8"),
            complaint(hk.distribute, other, accumulate=0),
            complaint(hk.distribute, other, clip_norm=0.0),
            complaint(hk.broadcast, model, optimizer, 2),
        ]

    expected = [
        "ModelError: the model is wrapped in DistributedDataParallel, which reduces gradients itself; pass the plain",
        "RecipeError: this optimizer is distributed already; call distribute once for each optimizer",
        "RecipeError: distribute needs a torch optimizer, it got Sequential",
        "RecipeError: Distribute.compression is 'bf8'; it must be one of none, fp16",
        "RecipeError: Distribute.accumulate is 0; it must be a whole number >= 1",
        "RecipeError: Distribute.clip_norm is 0.0; it must be a number > 0 or None",
        "CollectiveError: root is 2; the ranks of this job are 0 to 1",
    ]
    for texts in ranks.run(body):
        for text, start in zip(texts, expected, strict=True):
            assert text.startswith(start)


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_recipes_that_torch_cannot_train_are_refused(ranks):
    def body():
        import torch
        from torch_cases import complaint
        from torch_recipes import run

        return [
            complaint(run, model="lenet"),
            complaint(run, model=lambda: 3),
            complaint(run, optimizer=lambda parameters: "sgd"),
            complaint(run, metrics=("auc",)),
            complaint(run, loss=torch.nn.CrossEntropyLoss(reduction="sum")),
            complaint(run, data=lambda: [1, 2]),
            complaint(run, shard=None),
            complaint(run, steps_per_epoch=1),
            complaint(run, broadcast=hvdkit.Broadcast(root=2)),
            complaint(run, init=hvdkit.Init(engine="mpi")),
        ]

    expected = [
        "RecipeError: model 'lenet' is unknown; use 'mnist_cnn'",
        "RecipeError: Recipe.model must build a torch.nn.Module, it gave int",
        "RecipeError: Recipe.optimizer must be one of hvdkit's",
        "RecipeError: metric 'auc' is unknown in torch",
        "RecipeError: the loss has reduction='sum'; hvdkit needs the mean",
        "RecipeError: Recipe.data must give hvdkit.Data(train=..., validation=...), not list",
        "RecipeError: Recipe.shard is None: every process would train on all the data",
        "RecipeError: Recipe.steps_per_epoch is 1, counted for one process",
        "CollectiveError: root is 2; the ranks of this job are 0 to 1",
        "LaunchError: this process already uses engine 'torch'; it cannot change to 'mpi'",
    ]
    for texts in ranks.run(body):
        for text, start in zip(texts, expected, strict=True):
            assert text.startswith(start)


torch_here = pytest.mark.skipif(
    bool(unavailable(Combination("torch", "serial", 1))), reason=unavailable(Combination("torch", "serial", 1))
)


@pytest.mark.processes
@torch_here
@pytest.mark.torch
def test_a08_torch_after_tensorflow_is_refused_and_torch_alone_never_loads_it():
    script = """
import sys, types
import hvdkit.torch as hk
print("tensorflow" in sys.modules)
sys.modules["tensorflow"] = types.ModuleType("tensorflow")
hk.init()
"""
    done = launch_fresh(script)
    assert done.code == 1
    assert done.stdout.strip() == "False"
    assert done.stderr.strip().splitlines()[-1] == (
        "hvdkit: error: TensorFlow is already loaded in this process; train with torch in a separate process"
    )


@pytest.mark.processes
@torch_here
@pytest.mark.torch
@pytest.mark.parametrize("state", ["missing", "other_framework"])
def test_a02_a_horovod_that_is_missing_or_built_without_torch_is_named_with_the_remedy(tmp_path, state):
    package = tmp_path / "horovod"
    package.mkdir()
    # an installed Horovod is hidden behind this one, which has no extension for any framework
    (package / "__init__.py").write_text("__version__ = '0.28.1'\n")
    script = """
import importlib.util, sys
if sys.argv[1] == "missing":
    found = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name.startswith("horovod") else found(name, *rest)
else:
    sys.path.insert(0, sys.argv[2])
import hvdkit
recipe = hvdkit.Recipe(model="mnist_cnn", data=lambda: 1 / 0, optimizer=hvdkit.SGD(), init=hvdkit.Init("horovod"))
hvdkit.apply(recipe, framework="torch")
"""
    done = launch_fresh(script, args=[state, str(tmp_path)])
    assert done.code == 1
    words = {"missing": "Horovod is not installed", "other_framework": "Horovod was built without torch"}[state]
    assert done.stderr.startswith(f"hvdkit: error: {words}")
    assert "hvdkit build-horovod --framework torch" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.seconds < 30
