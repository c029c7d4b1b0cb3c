"""One state on all ranks: broadcast, save and restore."""

from __future__ import annotations

import copy

import pytest
from ranks import on

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
ONE = on("torch", engines=("mpi",))


@pytest.mark.parametrize("kind", ["SGD", "momentum", "AdamW"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d09_state_and_rate_that_only_rank_0_loaded_reach_every_rank_without_a_step(ranks, kind):
    def body():
        import torch
        from torch_cases import digest, mlp, rank

        import hvdkit.torch as hk

        model = mlp(torch.float32, seed=rank())
        options = {"momentum": 0.9} if kind == "momentum" else {}
        optimizer = getattr(torch.optim, "AdamW" if kind == "AdamW" else "SGD")(model.parameters(), 0.1, **options)
        if rank() == 0:
            for _ in range(3):
                model(torch.ones(2, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = 0.01
        before = digest(model, optimizer)
        hk.distribute(optimizer, model)
        hk.broadcast(model, optimizer)
        return before, digest(model, optimizer), optimizer.param_groups[0]["lr"]

    (before, after, rate), (_, other, other_rate) = ranks.run(body)
    assert before == after == other
    assert rate == other_rate == 0.01


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d11_options_and_state_keep_their_types(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        first = rank() == 0
        groups = [
            {"params": model[0].parameters(), "lr": 0.1 if first else 0.5, "name": "low" if first else "?"},
            {"params": model[1].parameters(), "lr": 0.2 if first else 0.5, "name": "top" if first else "?"},
        ]
        optimizer = torch.optim.Adam(groups, betas=(0.8, 0.9) if first else (0.9, 0.99), amsgrad=True, foreach=None)
        if first:
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        hk.distribute(optimizer, model)
        hk.broadcast(model, optimizer)
        options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        kinds = [{k: (type(v).__name__, str(getattr(v, "dtype", ""))) for k, v in s.items()}
                 for s in optimizer.state.values()]  # fmt: skip
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return options, kinds, [{k: type(v).__name__ for k, v in group.items()} for group in options]

    first, second = ranks.run(body)
    assert first == second
    assert [(group["lr"], group["name"], group["betas"]) for group in first[0]] == [
        (0.1, "low", (0.8, 0.9)),
        (0.2, "top", (0.8, 0.9)),
    ]
    assert first[2][0]["foreach"] == "NoneType"


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d12_tensors_of_every_dtype_and_stride_are_broadcast(ranks):
    def body():
        import torch
        from torch_cases import rank

        import hvdkit.torch as hk

        model = torch.nn.Linear(2, 2)
        model.weight.requires_grad_(False)
        r = rank()
        buffers = {
            "bool": torch.tensor([r == 0, True]),
            "int": torch.tensor([[7 - r, 2**40]]),
            "byte": torch.tensor([255 - r], dtype=torch.uint8),
            "narrow": torch.tensor([1.5 - r], dtype=torch.float16),
            "bfloat": torch.tensor([1.5 - r], dtype=torch.bfloat16),
            "complex": torch.tensor([1 + 2j - r], dtype=torch.complex64),
            "turned": (torch.arange(6.0).reshape(2, 3) - r).t(),
            "scalar": torch.tensor(3.0 - r),
            "empty": torch.zeros(0, 3),
        }
        for name, value in buffers.items():
            model.register_buffer(name, value)
        hk.broadcast(model)
        kept = all(getattr(model, name).stride() == value.stride() for name, value in buffers.items())
        return [(str(t.dtype), t.tolist()) for t in model.state_dict().values()], kept, model.weight.requires_grad

    first, second = ranks.run(body)
    assert first == second
    values = dict(zip(("weight", "bias", "bool", "int", "byte", "narrow", "bfloat", "complex"), first[0], strict=False))
    assert values["bool"] == ("torch.bool", [True, True])
    assert values["int"] == ("torch.int64", [[7, 2**40]])
    assert values["bfloat"] == ("torch.bfloat16", [1.5])
    assert values["complex"] == ("torch.complex64", [1 + 2j])
    assert first[1:] == (True, False)


@pytest.mark.parametrize("change", ["shape", "dtype", "frozen"])
@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_c08_a_model_that_differs_between_ranks_is_refused_by_the_tensors_name(ranks, change):
    def body():
        import torch
        from torch_cases import complaint, rank

        import hvdkit.torch as hk

        second = rank() == 1
        model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Linear(4, 3 + (second and change == "shape")))
        if second and change == "dtype":
            model[1].double()
        if second and change == "frozen":
            model[1].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return complaint(hk.broadcast, model) if change != "frozen" else complaint(hk.distribute, optimizer, model)

    first, second = ranks.run(body)
    assert first == second
    kinds = {"shape": "float32 (4, 4)", "dtype": "float64 (3, 4)", "frozen": "float32 (3, 4) frozen"}
    assert (
        f"ModelError: the model differs between ranks: '1.weight' is float32 (3, 4) on rank 0 and {kinds[change]}"
        in first
    )


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_random_state_is_each_ranks_own_however_often_the_state_is_sent(ranks):
    def body():
        import torch
        from torch_cases import mlp

        import hvdkit.torch as hk

        seeds = []
        for _ in range(2):
            model = mlp(seed=40)
            hk.broadcast(model)
            hk.broadcast(model)
            seeds.append((torch.initial_seed(), float(torch.rand(()))))
        return seeds

    first, second = ranks.run(body)
    assert [seed for seed, _ in first + second] == [40, 40, 41, 41]
    assert first[0] == first[1] != second[0] == second[1]


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_c06_e04_a_file_that_only_rank_0_sees_restores_every_rank(ranks, tmp_path):
    def body():
        import os

        import torch
        from torch_cases import digest, mlp, rank

        import hvdkit.torch as hk

        def make(seed):
            model = mlp(torch.float32, seed)
            return model, hk.distribute(torch.optim.Adam(model.parameters(), 0.01), model)

        def train(model, optimizer):
            for _ in range(3):
                model(torch.full((2, 6), 1.0 + rank())).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        path = f"{tmp_path}/rank{rank()}/state.pt"
        model, optimizer = make(0)
        train(model, optimizer)
        hk.save(path, model, optimizer, epoch=3, names=["a"], best=torch.tensor(0.5))
        saved = digest(model, optimizer)
        train(model, optimizer)
        other, its = make(rank() + 5)
        state = hk.restore(path, other, its)
        restored = digest(other, its)
        train(other, its)
        state["best"] = float(state["best"])
        there = os.path.exists(path)
        return saved == restored, digest(other, its) == digest(model, optimizer), state, there, digest(other)

    (*first, there, bits), (*second, also_there, other_bits) = ranks.run(body)
    assert first == second == [True, True, {"epoch": 3, "names": ["a"], "best": 0.5}]
    assert (there, also_there) == (True, False)
    assert bits == other_bits


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_e06_plain_and_distributed_state_load_into_each_other(ranks, tmp_path):
    def body():
        import torch
        from torch_cases import digest, mlp

        import hvdkit.torch as hk

        def make(distribute):
            model = mlp(torch.float32)
            optimizer = torch.optim.AdamW(model.parameters(), 0.01)
            return model, hk.distribute(optimizer, model) if distribute else optimizer

        def train(model, optimizer):
            for _ in range(2):
                model(torch.ones(2, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

        wrapped, plain = make(True), make(False)
        train(*wrapped)
        train(*plain)
        hk.save(f"{tmp_path}/{ranks_engine}.pt", *wrapped)
        content = torch.load(f"{tmp_path}/{ranks_engine}.pt", weights_only=True)
        keys = set(content["optimizer"]["param_groups"][0]) == set(plain[1].state_dict()["param_groups"][0])
        to_plain = make(False)
        to_plain[0].load_state_dict(content["model"])
        to_plain[1].load_state_dict(content["optimizer"])
        to_wrapped = make(True)
        to_wrapped[0].load_state_dict(plain[0].state_dict())
        # torch itself would let both optimizers share the state's tensors
        to_wrapped[1].load_state_dict(copy.deepcopy(plain[1].state_dict()))
        for pair in (wrapped, plain, to_plain, to_wrapped):
            train(*pair)
        return keys, {digest(*pair) for pair in (wrapped, plain, to_plain, to_wrapped)}

    ranks_engine = ranks.engine
    # ranks see the same data here, so all four must be the same
    (keys, digests), (_, others) = ranks.run(body)
    assert keys
    assert len(digests | others) == 1


@pytest.mark.parametrize("damage", ["missing", "short", "foreign", "pickle", "misfit"])
@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_a_file_that_cannot_be_used_is_the_same_line_on_every_rank(ranks, tmp_path, damage):
    def body():
        import torch
        from torch_cases import complaint, mlp

        import hvdkit.torch as hk
        from hvdkit.job.world import current

        path = f"{tmp_path}/state.pt"
        hk.save(path, mlp() if damage != "misfit" else torch.nn.Linear(2, 2))
        if current().is_root and damage == "missing":
            path = f"{tmp_path}/none.pt"
        if current().is_root and damage == "short":
            with open(path, "r+b") as file:
                file.truncate(500)
        if current().is_root and damage in ("foreign", "pickle"):
            torch.save({"weights": 1} if damage == "foreign" else complaint, path)
        return complaint(hk.restore, path, mlp())

    first, second = ranks.run(body)
    assert first == second
    assert first.startswith(f"CheckpointError: checkpoint {tmp_path}/")
    assert "\n" not in first


@pytest.mark.parametrize("ranks", on("torch", engines=("serial", "torch")), indirect=True)
def test_r40_what_is_saved_can_be_restored_or_is_refused_by_name_and_leaves_the_old_file(ranks, tmp_path):
    def body():
        import datetime
        from pathlib import Path

        import numpy as np
        import torch
        from torch_cases import complaint

        import hvdkit.torch as hk

        path = str(tmp_path / "x.pt")
        model = torch.nn.Linear(2, 1)
        plain = {
            "best": np.float64(0.5),
            "epoch": np.int64(3),
            "seen": [np.float32(1.5), (np.bool_(True), "a")],
            "k": {2: None},
        }
        hk.save(path, model, **plain)
        refused = {"where": Path("x"), "when": datetime.date(2020, 1, 1), "array": np.zeros(3), "call": lambda: 1}
        texts = {name: complaint(lambda name=name: hk.save(path, model, **{name: refused[name]})) for name in refused}
        return hk.restore(path, model), texts, len(list(tmp_path.iterdir()))

    for state, texts, files in ranks.run(body):
        assert state == {"best": 0.5, "epoch": 3, "seen": [1.5, (True, "a")], "k": {2: None}}
        assert type(state["epoch"]) is int
        for name, text in texts.items():
            assert text.startswith("CheckpointError"), name
            assert f"'{name}' is a " in text
        assert files == 1


@pytest.mark.parametrize("ranks", on("torch", engines=("torch",)), indirect=True)
def test_e06_a_compiled_model_and_a_plain_one_read_each_others_files(ranks, tmp_path):
    def body(folder):
        import torch
        from torch_cases import mlp

        import hvdkit.torch as hk

        hk.init()
        plain, compiled = mlp(seed=1), torch.compile(mlp(seed=2), backend="eager")
        names = {}
        for path, model, other in (("compiled.pt", compiled, plain), ("plain.pt", mlp(seed=3), compiled)):
            hk.broadcast(model)
            hk.save(f"{folder}/{path}", model)
            hk.restore(f"{folder}/{path}", other)
            names[path] = list(torch.load(f"{folder}/{path}", weights_only=True)["model"])
            for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                assert torch.equal(mine, theirs)
        return names, list(plain.state_dict())

    for names, due in ranks.run(body, str(tmp_path)):
        assert names == {"compiled.pt": due, "plain.pt": due}


@pytest.mark.parametrize("ranks", ONE, indirect=True)
def test_a_file_that_is_written_later_holds_the_versions_of_layers_too(ranks, tmp_path):
    def body(folder):
        import torch

        import hvdkit.torch as hk

        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        hk.save(f"{folder}/now.pt", model, optimizer)
        hk.snapshot(f"{folder}/later.pt", model, optimizer)()
        hk.init().barrier()
        now, later = (torch.load(f"{folder}/{name}.pt", weights_only=True)["model"] for name in ("now", "later"))
        return dict(now._metadata), dict(getattr(later, "_metadata", {}))

    for now, later in ranks.run(body, str(tmp_path)):
        assert now["1"] == {"version": 2}
        assert later == now
