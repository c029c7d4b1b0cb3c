"""Invariant 8: what a run saves opens where hvdkit and Horovod cannot be imported.

Pickles are refused and plain NumPy opens the files: tests/core/test_checkpoint_files.py.
"""

from __future__ import annotations

import json

import pytest
from cells import alone
from ranks import launch_fresh

WITHOUT = """
import json, sys
for name in ("hvdkit", "horovod"):
    sys.modules[name] = None
try:
    import hvdkit
    sys.exit("hvdkit is not hidden")
except ImportError:
    pass
import numpy as np
"""
READ = {
    "torch": """
import torch
content = torch.load(sys.argv[1] + "/epoch-0002.pt", weights_only=True)
net = torch.nn.Linear(6, 3)
net.load_state_dict(content["model"])
optimizer = torch.optim.SGD(net.parameters(), lr=9.0, momentum=0.1)
optimizer.load_state_dict(content["optimizer"])
slots = [state["momentum_buffer"].numpy() for state in optimizer.state.values()]
group = optimizer.param_groups[0]
weights = [value.detach().numpy() for value in net.parameters()]
optimizer.step()
print(json.dumps([group["lr"], group["momentum"], len(slots), float(sum(np.abs(w).sum() for w in weights))]))
""",
    "keras": """
import keras
with np.load(sys.argv[1] + "/epoch-0002.npz", allow_pickle=False) as file:
    names = set(file.files)
model = keras.models.load_model(sys.argv[1] + "/model.keras", safe_mode=True)
optimizer = model.optimizer
total = sum(float(np.abs(np.array(weight)).sum()) for weight in model.weights)
model.fit(np.ones((8, 6), "float32"), np.zeros(8, "int64"), verbose=0)
rate = float(np.array(optimizer.learning_rate))
print(json.dumps([rate, float(optimizer.momentum), len(optimizer.momentums), total]))
""",
}


def body(framework, folder):
    import numpy as np

    import hvdkit

    def net():
        if framework == "torch":
            import torch

            return torch.nn.Linear(6, 3)
        import keras

        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])

    x = np.random.default_rng(1).normal(size=(16, 6)).astype("float32")
    recipe = hvdkit.Recipe(
        model=net,
        data=hvdkit.Data(train=(x, np.arange(16) % 3)),
        optimizer=hvdkit.SGD(0.0625, momentum=0.5),
        batch_size=4,
        checkpoint=hvdkit.Checkpoint(folder),
        distribute=hvdkit.Distribute(clip_norm=5.0),
    )
    trainer = hvdkit.apply(recipe, framework)
    trainer.fit(2)
    if framework == "keras":
        trainer.model.save(f"{folder}/model.keras")
    return float(sum(np.abs(value).sum() for value in trainer.weights().values()))


@pytest.mark.parametrize("ranks", alone(("torch", "keras")), indirect=True)
def test_files_open_and_train_on_without_hvdkit(ranks, tmp_path):
    framework = ranks.combination.framework
    (total,) = ranks.run(body, framework, str(tmp_path))
    done = launch_fresh(WITHOUT + READ[framework], args=[str(tmp_path)])
    assert done.code == 0, done.stderr
    rate, momentum, slots, found = json.loads(done.stdout.splitlines()[-1])
    assert (rate, momentum, slots) == (0.0625, 0.5, 2)
    assert found == pytest.approx(total, rel=1e-6)
