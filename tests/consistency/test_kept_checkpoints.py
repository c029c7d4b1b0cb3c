"""Which files a recipe's run keeps, and what it goes on from."""

from __future__ import annotations

import pytest
from cells import alone, pairs
from ranks import UNDER_KERAS_2, but_horovod

LOOPS = but_horovod(pairs(("torch", "tf")))


def trained(framework, folder, epochs=3, without=(), count=32, **settings):
    """Train with a momentum; return weights, what the folder holds, and where the run began.

    Args:
        framework: ``torch``, ``tf`` or ``keras``.
        folder: Of the checkpoints.
        epochs: How many.
        without: Names of files that rank 0 removes before.
        count: Of samples.
        **settings: Fields of the recipe, and of its ``Checkpoint``.
    """
    from pathlib import Path

    import case_parts as parts

    import hvdkit

    fields = ("optimizer", "observers", "metrics", "model")
    kept = {name: settings.pop(name) for name in list(settings) if name not in fields}
    world = parts.verbs(framework).init()
    for name in without if world.rank == 0 else ():
        Path(folder, name).unlink()
    recipe = hvdkit.Recipe(
        data=hvdkit.Data(train=parts.samples(count), validation=parts.samples(10, seed=5)),
        batch_size=4,
        epochs=epochs,
        checkpoint=hvdkit.Checkpoint(str(folder), **kept),
        **{
            "model": lambda: parts.net(framework),
            "optimizer": hvdkit.SGD(0.1, momentum=0.9),
            "metrics": ("accuracy",),
            **settings,
        },
    )
    trainer = hvdkit.apply(recipe, framework)
    began = trainer.global_step
    history = trainer.fit()
    files = sorted(path.name for path in Path(folder).iterdir() if not path.name.startswith("."))
    losses = {name: history.values(name) for name in ("val_loss", "loss")}
    return parts.state(framework, trainer.model, trainer.optimizer), files, began, losses


@pytest.mark.parametrize("ranks", LOOPS, indirect=True)
def test_files_inside_epochs_are_gone_on_from_as_if_nothing_had_been(ranks, tmp_path):
    framework = ranks.combination.framework
    suffix = "pt" if framework == "torch" else "npz"
    settings = {"every_steps": 3, "keep": 4}
    whole = ranks.run(trained, framework, str(tmp_path), **settings)
    names = ["epoch-0001-step-00000006", "epoch-0002-step-00000009", "epoch-0002", "epoch-0003"]
    assert whole[0][1] == [*(f"{name}.{suffix}" for name in names), "manifest.json"]
    again = ranks.run(trained, framework, str(tmp_path), without=[f"epoch-0003.{suffix}"], **settings)
    assert [(began, state == whole[0][0]) for state, _, began, _ in again] == [(9, True)] * 2
    assert again[0][3] == whole[0][3]


@pytest.mark.skipif(bool(UNDER_KERAS_2), reason="Keras 2 hides where its generators stand")
@pytest.mark.parametrize("ranks", but_horovod(pairs()), indirect=True)
def test_dropout_goes_on_where_it_was_on_every_rank(ranks, tmp_path):
    def body(framework, folder):
        def net():
            if framework == "torch":
                import torch

                torch.manual_seed(0)
                return torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 3))
            import keras
            import keras_runs as runs

            runs.fresh()
            keras.utils.set_random_seed(0)
            # draws in every pass, also where nothing is trained
            sequence = [keras.layers.Reshape((6, 1)), keras.layers.LSTM(8, dropout=0.5)]
            return keras.Sequential([keras.Input((6,)), *sequence, keras.layers.Dropout(0.5), keras.layers.Dense(3)])

        import case_parts as parts

        suffix = parts.verbs(framework).SUFFIX
        settings = {"model": net, "keep": 9, "every_steps": None if framework == "keras" else 3}
        whole = trained(framework, folder, **settings)
        last = [f"epoch-0003.{suffix}"]
        if framework == "keras":
            return [whole[0], trained(framework, folder, without=last, **settings)[0]]
        inside = trained(framework, folder, without=last, **settings)
        names = [*last, f"epoch-0002-step-00000009.{suffix}"]
        between = trained(framework, folder, without=names, **settings)
        assert (inside[2], between[2]) == (9, 8)
        return [whole[0], inside[0], between[0]]

    for whole, *resumed in ranks.run(body, ranks.combination.framework, str(tmp_path)):
        assert all(state == whole for state in resumed)


@pytest.mark.parametrize("ranks", LOOPS, indirect=True)
def test_files_are_written_after_so_many_minutes_by_one_clock_for_all(ranks, tmp_path):
    def body(framework, folder):
        import time

        from hvdkit.training.observers import Observer

        class Slow(Observer):
            def on_step_end(self, trainer):
                time.sleep(0.02 * (1 + trainer.world.rank))

        # two epochs of 40 updates that take 0.04 s, with a file after every half second
        return trained(framework, folder, 2, (), 320, keep=99, every_minutes=1 / 120, observers=(Slow(),))[1]

    first, second = ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert first == second
    assert any("-step-" in name for name in first)


@pytest.mark.parametrize("ranks", but_horovod(pairs()), indirect=True)
def test_the_file_of_the_best_epoch_stays(ranks, tmp_path):
    framework = ranks.combination.framework
    results = ranks.run(trained, framework, str(tmp_path), 5, keep=1, best=("rising", "val_loss"))
    files, losses = results[0][1], results[0][3]["val_loss"]
    best = losses.index(max(losses)) + 1
    suffix = files[0].rpartition(".")[2]
    assert files == [f"best.{suffix}", f"epoch-0005.{suffix}", "manifest.json"]

    def epoch_of(framework, path):
        import case_parts as parts

        return parts.verbs(framework).read_saved(path).state["epoch"]

    assert ranks.run(epoch_of, framework, str(tmp_path / files[0])) == [best] * 2


@pytest.mark.parametrize("ranks", alone(), indirect=True)
def test_s13_a_file_that_was_changed_later_is_told_and_the_one_before_is_used(ranks, tmp_path, capfd):
    framework = ranks.combination.framework
    ((state, files, *_),) = ranks.run(trained, framework, str(tmp_path))
    newest = tmp_path / files[-2]
    content = bytearray(newest.read_bytes())
    content[len(content) // 3] ^= 1
    newest.write_bytes(content)
    ((again, _, began, _),) = ranks.run(trained, framework, str(tmp_path))
    assert began == 16
    assert again == state


@pytest.mark.parametrize("ranks", alone(), indirect=True)
def test_s13_a_recipe_that_has_changed_is_refused_or_forced(ranks, tmp_path):
    def body(framework, folder):
        from complaints import complaint

        import hvdkit

        trained(framework, folder)
        changed = {"epochs": 4, "optimizer": hvdkit.SGD(0.2, momentum=0.9)}
        refused = complaint(lambda: trained(framework, folder, **changed))
        return refused, trained(framework, folder, force=True, **changed)[2]

    ((refused, began),) = ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert "was saved with another recipe: optimizer.lr 0.1 (now 0.2); go" in refused
    assert began == 24


@pytest.mark.parametrize("ranks", alone(("keras",)), indirect=True)
def test_files_inside_epochs_are_refused_where_no_run_can_go_on_from_them(ranks, tmp_path):
    def body(folder):
        from complaints import complaint

        return complaint(lambda: trained("keras", folder, every_steps=2))

    (refused,) = ranks.run(body, str(tmp_path))
    assert "Checkpoint.every_steps must be None: keras can only begin whole epochs" in refused


@pytest.mark.parametrize("ranks", but_horovod(pairs()), indirect=True)
def test_exported_weights_are_read_by_safetensors_alone(ranks, tmp_path):
    pytest.importorskip("safetensors", reason="safetensors is not installed")

    def body(framework, path):
        import case_parts as parts

        hk = parts.verbs(framework)
        hk.init()
        model = parts.net(framework)
        if framework != "torch":
            model(parts.samples(2)[0])
        hk.broadcast(model)
        hk.export_weights(path, model)
        state = model.state_dict() if framework == "torch" else {}
        named = state or {getattr(each, "path", each.name).split(":")[0]: each for each in model.variables}
        return {name: value.numpy().tolist() for name, value in named.items()}

    from safetensors.numpy import load_file

    path = tmp_path / "weights.safetensors"
    first, _ = ranks.run(body, ranks.combination.framework, str(path))
    assert {name: value.tolist() for name, value in load_file(path).items()} == first
