"""Files that rank 0 alone sees, and runs that go on from them, for fit and for a custom loop."""

from __future__ import annotations

import dataclasses

import pytest
from keras_kinds import EVERYWHERE, ON_JAX, ON_TENSORFLOW, ON_TORCH
from ranks import on, slowly

import hvdkit

ON_TF = on("tf", engines=("mpi",))
ALL = [*EVERYWHERE, *ON_TF]


def trained(framework, folder, stops, count=32):
    """Train in as many runs as ``stops``, each of which ends after so many epochs; runs on every rank."""
    import keras_runs as runs

    from hvdkit.job.world import current

    runs.fresh()
    mine = f"{folder}/rank{current().rank}"  # no other rank sees these files
    steps = runs.Steps()
    recipe = hvdkit.Recipe(
        model=runs.small_net,
        data=hvdkit.Data(train=runs.samples(count), validation=runs.samples(8, seed=6)),
        optimizer=hvdkit.SGD(0.05, momentum=0.9),
        metrics=("accuracy",),
        batch_size=4,
        epochs=4,
        seed=runs.SEED,
        observers=(steps,),
        scale_lr=hvdkit.ScaleLR(warmup_epochs=3),
        checkpoint=hvdkit.Checkpoint(mine, keep=2),
    )
    for last in stops:
        trainer = hvdkit.apply(recipe, framework)
        trainer.fit(epochs=last)
    records = [{k: v for k, v in r.items() if "second" not in k} for r in trainer.history.epochs]
    return {
        "weights": runs.values(trainer.model.weights),
        "states": steps.states,
        "rates": steps.rates,
        "history": records,
    }


@pytest.mark.parametrize("ranks", ALL, indirect=True)
def test_c06_e04_d09_a_resumed_run_is_the_uninterrupted_one(ranks, tmp_path):
    def body(framework, folder):
        return trained(framework, folder, [2, 4]), trained(framework, f"{folder}/whole", [4])

    results = ranks.run(body, ranks.combination.framework, str(tmp_path))
    for resumed, whole in results:
        assert resumed["states"] == whole["states"]
        assert len(resumed["states"]) == 16
        assert resumed["rates"] == whole["rates"]
        assert [resumed["rates"][i] for i in (3, 7, 11, 15)] == pytest.approx([0.2 / 3, 0.25 / 3, 0.1, 0.1], rel=1e-6)
        assert resumed["history"] == whole["history"]
        assert [record["epoch"] for record in resumed["history"]] == [1, 2, 3, 4]
    assert results[0][0]["states"] == results[1][0]["states"]
    names = [f"rank0/epoch-{epoch:04d}.npz" for epoch in (3, 4)]
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("epoch-*"))
    assert files == names + [f"whole/{name}" for name in names]


@pytest.mark.parametrize("ranks", [*ON_TENSORFLOW, *ON_TORCH, *slowly(ON_JAX), *ON_TF], indirect=True)
def test_two_processes_go_on_as_one_with_the_same_global_batch(ranks, pools, tmp_path):
    def body(framework, folder, stops, count=33):
        return trained(framework, folder, stops, count=count)

    framework = ranks.combination.framework
    whole = ranks.run(body, framework, str(tmp_path / "whole"), [4])
    ranks.run(body, framework, str(tmp_path / "two"), [2])
    alone = pools.get(dataclasses.replace(ranks.combination, engine="serial", size=1))
    (one,) = alone.run(body, framework, str(tmp_path / "two"), [4])
    assert one["rates"] == whole[0]["rates"][10:]
    for a, b in zip(one["weights"], whole[0]["weights"], strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)
    assert [r["loss"] for r in one["history"]] == pytest.approx([r["loss"] for r in whole[0]["history"]], rel=1e-4)


@pytest.mark.parametrize("ranks", ALL, indirect=True)
def test_files_that_cannot_be_used_give_one_line_on_every_rank(ranks, tmp_path):
    def body(framework, folder):
        import importlib
        import pathlib

        import keras
        import keras_runs as runs

        from hvdkit.errors import CheckpointError

        runs.fresh()
        hk = importlib.import_module(f"hvdkit.{framework}")
        rank = hk.init().rank
        model, optimizer = runs.small_net(), keras.optimizers.Adam(0.01)
        hk.broadcast(model, optimizer)
        good = f"{folder}/good.npz"
        hk.save(good, model, optimizer, epoch=3, note=["a", 1.5])
        if rank == 0:
            content = pathlib.Path(good).read_bytes()
            pathlib.Path(f"{folder}/cut.npz").write_bytes(content[: len(content) // 2])
            pathlib.Path(f"{folder}/text.npz").write_text("weights")
        inputs = keras.Input((runs.FEATURES,))
        other = keras.Model(inputs, keras.layers.Dense(4)(inputs))
        found = {"state": hk.restore(good, model, optimizer)}
        calls = {
            "cut": lambda: hk.restore(f"{folder}/cut.npz", model, optimizer),
            "text": lambda: hk.restore(f"{folder}/text.npz", model, optimizer),
            "missing": lambda: hk.restore(f"{folder}/none.npz", model, optimizer),
            "other model": lambda: hk.restore(good, other),
            "state": lambda: hk.save(good, model, epoch=object()),
        }
        for name, call in calls.items():
            try:
                call()
            except CheckpointError as error:
                found[f"error {name}"] = str(error)
        return found

    first, second = ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert first == second
    assert first["state"] == {"epoch": 3, "note": ["a", 1.5]}
    assert first["error cut"].startswith(f"checkpoint {tmp_path}/cut.npz cannot be read: ")
    assert first["error text"].startswith(f"checkpoint {tmp_path}/text.npz cannot be read: ")
    assert first["error missing"] == f"checkpoint {tmp_path}/none.npz does not exist"
    assert first["error other model"].startswith(f"checkpoint {tmp_path}/good.npz holds 4 arrays")
    assert "must be numbers, strings, lists and dicts" in first["error state"]
    assert not any("\n" in text for name, text in first.items() if name.startswith("error"))


@pytest.mark.parametrize("ranks", ALL, indirect=True)
@pytest.mark.parametrize("kind", ["SGD", "momentum", "AdamW"])
def test_d09_e06_rate_and_slots_come_back_on_every_rank(ranks, kind, tmp_path):
    def body(framework, path):
        import importlib

        import keras
        import keras_runs as runs
        import numpy as np

        runs.fresh()
        hk = importlib.import_module(f"hvdkit.{framework}")
        world = hk.init()

        def parts(rate):
            kinds = {"SGD": keras.optimizers.SGD, "AdamW": keras.optimizers.AdamW}
            optimizer = kinds[kind](rate) if kind in kinds else keras.optimizers.SGD(rate, momentum=0.9)
            model = runs.small_net()
            optimizer.build(model.trainable_variables)
            return model, optimizer

        def update(model, optimizer, gradient):
            optimizer.apply_gradients([(variable * 0 + gradient, variable) for variable in model.trainable_variables])

        plain = parts(0.1)  # saved plain, restored into a distributed one
        plain[1].learning_rate = 0.01
        update(*plain, 0.5)
        hk.save(path, *plain)
        shared = parts(0.1)
        hk.distribute(shared[1], shared[0])
        hk.restore(path, *shared)
        restored = runs.state(*shared)
        update(*shared, 1.0 + world.rank)
        hk.save(path, *shared)
        again = parts(0.5)  # saved distributed, restored into a plain one
        hk.restore(path, *again)
        saved = dict(np.load(path)) if world.rank == 0 else {}
        return {
            "restored": restored,
            "shared": runs.state(*shared),
            "again": runs.state(*again),
            "rate": float(runs.values([again[1].learning_rate])[0]),
            "names": [name for name in saved if "hvdkit" in name],
        }

    first, second = ranks.run(body, ranks.combination.framework, str(tmp_path / "file.npz"))
    assert first["rate"] == pytest.approx(0.01)
    assert first["again"] == first["shared"]
    assert first["names"] == []
    assert {**first, "names": 0} == {**second, "names": 0}
