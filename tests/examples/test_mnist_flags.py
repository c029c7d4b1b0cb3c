"""Every flag of examples/mnist.py changes something; most runs are one plain process on a few digits."""

from __future__ import annotations

import pytest
from example_runs import (
    MNIST,
    ROOT,
    available,
    error_lines,
    every,
    hvdkit_run,
    keras_elsewhere,
    one_process,
    run,
)
from ranks import on

pytestmark = pytest.mark.timeout(600)
PLAIN = available(one_process())[:1]
PAIRS = available([*every(), *keras_elsewhere()])[:1]
ENGINES = [*on("torch", sizes=(1,)), *on("tf", sizes=(1,)), *on("keras", sizes=(1,), env={"KERAS_BACKEND": "jax"})]
OPTIMIZERS = ("sgd", "adam", "adamw", "adagrad")


@pytest.fixture
def command(digits):
    """A plain process of the first framework that is here, with its variables."""

    def of(*flags, data=True):
        if not PLAIN:
            pytest.skip("there is no framework here")
        one = PLAIN[0]
        folder = ("--data-dir", str(digits)) if data else ()
        return ["python", MNIST, "--framework", one.framework, *folder, *flags], dict(one.env)

    return of


@pytest.fixture
def summary(command, summaries):
    """The summary of a plain process, one epoch unless said otherwise."""

    def of(*flags, **options):
        words, env = command("--epochs", "1", *flags, **options)
        return summaries.of_command(*words, env=env)

    return of


@pytest.fixture
def pair(digits, summaries):
    """The summary of one epoch on 2 processes."""

    def of(*flags):
        if not PAIRS:
            pytest.skip("there is no engine here")
        return summaries.of(PAIRS[0], "--data-dir", str(digits), "--epochs", "1", *flags)

    return of


@pytest.fixture
def refusal(command):
    """The error line of a plain process that must be refused."""

    def of(*flags):
        words, env = command("--epochs", "1", *flags)
        finished = run(*words, env=env)
        assert finished.code == 1
        assert "Traceback" not in finished.stderr
        (line,) = error_lines(finished)
        return line

    return of


def weights(summary):
    return summary["weights_sha256"][0]


def test_data_dir_takes_other_digits(summary):
    assert summary()["steps_per_epoch"] == 4
    assert summary(data=False)["steps_per_epoch"] == 63


def test_epochs_and_batch_size(summary):
    longer = summary("--epochs", "2", "--batch-size", "32")
    assert [record["epoch"] for record in longer["epochs"]] == [1, 2]
    assert (longer["global_batch_size"], longer["steps_per_epoch"]) == (32, 8)


def test_lr(summary):
    assert summary()["learning_rate"] == 0.001
    faster = summary("--lr", "0.01")
    assert faster["learning_rate"] == 0.01
    assert weights(faster) != weights(summary())


def test_each_optimizer_is_another(summary):
    ends = {name: weights(summary("--optimizer", name)) for name in OPTIMIZERS}
    assert len(set(ends.values())) == len(OPTIMIZERS)
    assert ends["adam"] == weights(summary())


def test_momentum_changes_sgd(summary):
    assert weights(summary("--optimizer", "sgd", "--momentum", "0.9")) != weights(summary("--optimizer", "sgd"))


def test_lr_scaling_and_warmup(pair):
    rates = {rule: pair("--lr-scaling", rule, "--warmup-epochs", "0")["learning_rate"] for rule in ("linear", "none")}
    assert rates == pytest.approx({"linear": 0.002, "none": 0.001})
    halfway = pair("--lr-scaling", "sqrt", "--warmup-epochs", "2")
    assert halfway["learning_rate"] == pytest.approx(0.001 * 2**0.5)
    assert halfway["epochs"][0]["learning_rate"] == pytest.approx(0.001 + 0.001 * (2**0.5 - 1) / 2)


@pytest.mark.parametrize("combination", ENGINES)
def test_engine(combination, digits, summaries):
    words = ("--framework", combination.framework, "--data-dir", str(digits), "--epochs", "1")
    command = ("python", MNIST, *words, "--engine", combination.engine)
    assert summaries.of_command(*command, env=dict(combination.env))["engine"] == combination.engine


def test_workers_load_the_same_samples(summary, refusal):
    if not PLAIN or PLAIN[0].framework != "torch":
        pytest.skip("torch alone has loader processes")
    assert weights(summary("--workers", "2")) == weights(summary())
    assert "Shard.workers is -1" in refusal("--workers", "-1")


@pytest.mark.parametrize("combination", [entry for entry in one_process() if entry.values[0].framework != "torch"])
def test_workers_are_refused_by_the_others(combination, digits):
    finished = run(
        *("python", MNIST, "--framework", combination.framework),
        *("--data-dir", str(digits), "--workers", "2"),
        env=dict(combination.env),
    )
    (line,) = error_lines(finished)
    assert finished.code == 1
    assert "workers" in line


def test_target_accuracy_ends_the_run(summary):
    assert len(summary("--epochs", "3", "--target-accuracy", "0.01")["epochs"]) == 1


def test_target_accuracy_in_percent_is_refused_with_a_hint(refusal):
    assert "an accuracy in 0..1 (write 0.95 for 95 %)" in refusal("--target-accuracy", "95")


def test_momentum_belongs_to_sgd(refusal):
    assert "--momentum belongs to --optimizer sgd, not to adam" in refusal("--momentum", "0.9")


def test_resume_needs_a_folder(refusal):
    assert "--resume needs --checkpoint DIR" in refusal("--resume")


def test_checkpoint_and_resume(command, tmp_path, summaries):
    folder = str(tmp_path / "checkpoints")
    words, env = command("--epochs", "1", "--checkpoint", folder)
    assert run(*words, env=env).code == 0
    (file,) = (tmp_path / "checkpoints").iterdir()
    assert file.stem == "epoch-0001"
    again = run(*words, env=env)
    assert again.code == 1
    assert "holds 1 checkpoint(s) of an earlier run" in error_lines(again)[0]
    words, env = command("--epochs", "2", "--checkpoint", folder, "--resume")
    assert len(summaries.of_command(*words, env=env)["epochs"]) == 2


def test_without_out_nothing_is_written_beside_the_checkpoint(command, tmp_path):
    words, env = command("--epochs", "1")
    finished = run(words[0], str(ROOT / MNIST), *words[2:], env=env, cwd=tmp_path)
    assert finished.code == 0
    assert list(tmp_path.iterdir()) == []
    assert "epoch 1: " in finished.stderr


@pytest.mark.parametrize("combination", every())
def test_fp16_allreduce(combination, digits, summaries):
    flags = ("--data-dir", str(digits), "--epochs", "1")
    if combination.engine == "mpi":
        program = (MNIST, "--framework", combination.framework, *flags, "--fp16-allreduce")
        finished = run(*hvdkit_run(combination, *program), env=dict(combination.env))
        lines = error_lines(finished)
        assert finished.code == 1
        assert {line.split("hvdkit")[0] for line in lines} == {"[0] ", "[1] ", ""}
        assert all("engine 'mpi' cannot sum half precision" in line for line in lines)
        return
    halved = summaries.of(combination, *flags, "--fp16-allreduce")
    assert len(set(halved["weights_sha256"])) == 1
    assert weights(halved) != weights(summaries.of(combination, *flags))
