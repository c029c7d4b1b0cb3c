"""Any tree of arrays of one length is data, and so are data sets whose samples are no pairs."""

from __future__ import annotations

import pytest
from installed import needs
from ranks import on

import hvdkit

PAIR = on("torch", engines=("torch",))


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r33_any_tree_of_arrays_of_one_length_is_data_and_comes_in_its_form(ranks):
    def body():
        import numpy as np
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        x, y = np.arange(20.0).reshape(10, 2), np.arange(10, dtype=np.int32)
        forms = {
            "three": (x, x + 1, y),
            "one in a tuple": (y,),
            "list": [x, y],
            "dict": {"x": x, "y": y},
            "nested": {"in": (x, [x]), "out": {"y": y}},
            "array": y,
            "tensor": torch.arange(10),
            "plain lists": (x.tolist(), x.tolist(), y.tolist()),
            "pair": (x, y),
        }
        seen = {}
        for name, data in forms.items():
            batches = hk.shard(data, 4)
            shapes, labels = [], []
            for batch in batches:
                shapes.append(shape(batch))
                last = {"dict": lambda b: b["y"], "nested": lambda b: b["out"]["y"]}.get(name)
                found = last(batch) if last else batch if torch.is_tensor(batch) else batch[-1]
                labels += found.tolist() if batches.count else []
            seen[name] = shapes[0], sorted(labels)
        wrong = {
            "three": (x, x[:7], y),
            "list": [x, y[:9]],
            "dict": {"a": x, "b": y[:3]},
            "samples": [(x, x), (x, x)],
            "many": [x] * 5,
            "scalar": np.float64(3),
            "text": (np.array(["a"] * 10), y),
            "sharded": hk.shard(y, 4),
        }
        return seen, {name: complaint(hk.shard, data, 4) for name, data in wrong.items()}

    def shape(tree):
        if isinstance(tree, dict):
            return {key: shape(part) for key, part in tree.items()}
        if hasattr(tree, "shape"):
            return tuple(tree.shape)
        return type(tree).__name__, [shape(part) for part in tree]

    results = ranks.run(body)
    for name, (form, _) in results[0][0].items():
        assert sorted(results[0][0][name][1] + results[1][0][name][1]) == list(range(10)), name
        assert (
            form
            == {
                "three": ("tuple", [(4, 2), (4, 2), (4,)]),
                "one in a tuple": ("tuple", [(4,)]),
                "list": ("Batch", [(4, 2), (4,)]),
                "dict": {"x": (4, 2), "y": (4,)},
                "nested": {"in": ("tuple", [(4, 2), ("list", [(4, 2)])]), "out": {"y": (4,)}},
                "array": (4,),
                "tensor": (4,),
                "plain lists": ("tuple", [(4, 2), (4, 2), (4,)]),
                "pair": ("Batch", [(4, 2), (4,)]),
            }[name]
        )
    assert results[0][1] == results[1][1]
    for name, text in {
        "three": "DataError: data[0] has 10 samples but data[1] has 7; give all arrays one length",
        "list": "DataError: data[0] has 10 samples but data[1] has 9",
        "dict": "DataError: data['a'] has 10 samples but data['b'] has 3",
        "samples": "RecipeError: a list of 2 parts of one form may be arrays of all samples or single samples",
        "many": "RecipeError: a list of 5 parts of one form",
        "scalar": "RecipeError: data of class float64 cannot be sharded",
        "sharded": "RecipeError: the data are sharded already; give shard() all of them, once",
        "text": "DataError: data of dtype <U1 cannot be made a tensor",
    }.items():
        assert results[0][1][name].startswith(text), results[0][1][name]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r33_data_sets_of_dicts_and_tuples_keep_their_form(ranks, workers):
    def body():
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import hvdkit.torch as hk

        class Dicts(torch.utils.data.Dataset):
            def __len__(self):
                return 10

            def __getitem__(self, place):
                return {"image": torch.full((3,), float(place)), "name": f"n{place}", "label": place}

        three = TensorDataset(torch.arange(10.0), torch.zeros(10, 2), torch.arange(10))
        names, labels, collated = [], [], []
        batches = hk.shard(Dicts(), 4, workers=workers)
        for batch in batches:
            assert batch["image"].shape[1:] == (3,)
            names += batch["name"] if batches.count else []
        batches = hk.shard(three, 4, workers=workers)
        for first, second, third in batches:
            assert first.tolist() == third.tolist()
            assert second.shape[1:] == (2,)
            labels += third.tolist() if batches.count else []
        own = DataLoader(Dicts(), 4, num_workers=workers, collate_fn=lambda samples: [s["label"] for s in samples])
        for batch in hk.shard(own, 4):
            collated += batch
        return names, labels, collated

    results = ranks.run(body)
    names, labels, collated = (sorted(first + second) for first, second in zip(*results, strict=True))
    assert names == sorted(f"n{place}" for place in range(10))
    assert labels == collated == list(range(10))


@needs("datasets")
@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r33_data_sets_of_hugging_face_give_their_dicts(ranks):
    def body():
        import datasets

        import hvdkit.torch as hk

        data = datasets.Dataset.from_dict({"text": [f"t{n}" for n in range(10)], "label": list(range(10))})
        seen = []
        for kind in (data, data.with_format("torch")):
            batches = hk.shard(kind, 4)
            for batch in batches:
                assert [f"t{int(n)}" for n in batch["label"]] == list(batch["text"])
                seen += batch["label"].tolist() if batches.count else []
        return seen

    first, second = ranks.run(body)
    assert sorted(first + second) == sorted([*range(10)] * 2)


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r33_a_recipes_loss_says_that_it_needs_pairs(ranks):
    def body():
        import numpy as np
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        from torch_cases import complaint

        class Two(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 3)

            def forward(self, inputs):
                left, right = (inputs["a"], inputs["b"]) if isinstance(inputs, dict) else inputs
                return self.layer(torch.cat([left, right], 1))

        x, y = np.ones((10, 2), np.float32), np.arange(10) % 3
        samples = TensorDataset(torch.from_numpy(x), torch.from_numpy(x), torch.from_numpy(y))

        def pair(batch):
            left, right, label = torch.utils.data.default_collate(batch)
            return {"a": left, "b": right}, label

        def fitted(train):
            recipe = hvdkit.Recipe(model=Two, data=hvdkit.Data(train), optimizer=hvdkit.SGD(0.1), batch_size=2)
            return hvdkit.apply(recipe, "torch").fit()

        refused = {"three": (x, x, y), "dict": {"a": x, "b": x, "y": y}, "array": x, "samples": samples}
        loss = fitted(DataLoader(samples, 2, collate_fn=pair)).epochs[-1]["loss"]
        whole = fitted(((x, x), y)).epochs[-1]["loss"]
        return {name: complaint(fitted, train) for name, train in refused.items()}, loss, whole

    start = "RecipeError: a recipe's loss takes pairs (inputs, targets), but a batch of these data is "
    for texts, loss, whole in ranks.run(body):
        assert texts["three"].startswith(start + "a tuple of 3 parts; give (x, y), for several inputs ((x1, x2), y)")
        assert texts["dict"].startswith(start + "a dict with the keys a, b, y")
        assert texts["array"].startswith(start + "a single Tensor")
        assert texts["samples"].startswith(start + "a list of 3 parts")
        assert 0 < loss < 3
        assert 0 < whole < 3


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r33_tensors_keep_their_layout_and_images_of_numpy_get_torchs(ranks):
    def body():
        import numpy as np
        import torch

        import hvdkit.torch as hk

        images, labels = np.zeros((4, 8, 6, 3), np.float32), np.arange(4)
        found = {}
        for name, data in {"numpy": (images, labels), "tensors": (torch.zeros(4, 3, 8, 6), torch.arange(4))}.items():
            found[name] = [tuple(x.shape) for x, _ in hk.shard(data, 2)]
        found["dict"] = [tuple(batch["image"].shape) for batch in hk.shard({"image": images, "label": labels}, 2)]
        return found

    assert ranks.run(body) == [{name: [(2, 3, 8, 6)] for name in ("numpy", "tensors", "dict")}] * 2
