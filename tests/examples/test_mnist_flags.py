"""Every flag of examples/mnist.py changes something; most runs are on a few digits, in ranks that wait for work."""

from __future__ import annotations

from tempfile import gettempdir

import pytest
from example_runs import (
    MNIST,
    available,
    error_lines,
    every,
    keras_elsewhere,
    one_process,
    run_inside,
)
from ranks import on

pytestmark = pytest.mark.processes

PLAIN = available(one_process())[:1]
PAIRS = available([*every(), *keras_elsewhere()])[:1]
ENGINES = [*on("torch", sizes=(1,)), *on("tf", sizes=(1,)), *on("keras", sizes=(1,), env={"KERAS_BACKEND": "jax"})]
OPTIMIZERS = ("sgd", "adam", "adamw", "adagrad")


@pytest.fixture
def summary(digits, summaries):
    """The summary of one process with the first framework that is here; one epoch unless said otherwise."""

    def of(*flags, data=True):
        if not PLAIN:
            pytest.skip("there is no framework here")
        folder = ("--data-dir", str(digits)) if data else ()
        return summaries.inside(PLAIN[0], *folder, "--epochs", "1", *flags)

    return of


@pytest.fixture
def pair(digits, summaries):
    """The summary of one epoch on 2 processes."""

    def of(*flags):
        if not PAIRS:
            pytest.skip("there is no engine here")
        return summaries.inside(PAIRS[0], "--data-dir", str(digits), "--epochs", "1", *flags)

    return of


@pytest.fixture
def ended(digits, pools):
    """How one process ended."""

    def of(*flags, **options):
        if not PLAIN:
            pytest.skip("there is no framework here")
        common = ("--framework", PLAIN[0].framework, "--data-dir", str(digits), "--epochs", "1")
        (finished,) = run_inside(pools.get(PLAIN[0]), MNIST, *common, *flags, **options)
        return finished

    return of


@pytest.fixture
def refusal(ended):
    """The error line of a process that must be refused."""

    def of(*flags):
        finished = ended(*flags)
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
def test_workers_are_refused_by_the_others(combination, digits, pools):
    flags = ("--framework", combination.framework, "--data-dir", str(digits), "--workers", "2")
    (finished,) = run_inside(pools.get(combination), MNIST, *flags)
    (line,) = error_lines(finished)
    assert finished.code == 1
    assert "workers" in line


def test_precision(ended):
    assert ", precision " not in ended().stderr
    assert ", precision bf16" in ended("--precision", "bf16").stderr


@pytest.mark.skipif(" " in gettempdir(), reason="torch's compiler takes no temporary folder with a blank in its name")
def test_compile(ended):
    if not PLAIN or PLAIN[0].framework != "torch":
        pytest.skip("torch alone compiles a recipe's model")
    assert ", compiled" not in ended().stderr
    assert ", compiled" in ended("--compile").stderr


@pytest.mark.parametrize("flags", [("--compile",), ("--cuda-graphs", "on")], ids="-".join)
@pytest.mark.parametrize("combination", [entry for entry in one_process() if entry.values[0].framework != "torch"])
def test_what_only_torch_can_do_is_refused_by_the_others(combination, flags, digits, pools):
    program = (MNIST, "--framework", combination.framework, "--data-dir", str(digits), *flags)
    (finished,) = run_inside(pools.get(combination), *program)
    (line,) = error_lines(finished)
    assert finished.code == 1
    assert "Traceback" not in finished.stderr
    assert f"{' '.join(flags)} belongs to --framework torch, not to {combination.framework}" in line


def test_target_accuracy_ends_the_run(summary):
    assert len(summary("--epochs", "3", "--target-accuracy", "0.01")["epochs"]) == 1


def test_target_accuracy_in_percent_is_refused_with_a_hint(refusal):
    assert "an accuracy in 0..1 (write 0.95 for 95 %)" in refusal("--target-accuracy", "95")


def test_momentum_belongs_to_sgd(refusal):
    assert "--momentum belongs to --optimizer sgd, not to adam" in refusal("--momentum", "0.9")


def test_resume_needs_a_folder(refusal):
    assert "--resume needs --checkpoint DIR" in refusal("--resume")


def test_checkpoint_and_resume(ended, refusal, summary, tmp_path):
    folder = ("--checkpoint", str(tmp_path / "checkpoints"))
    assert ended(*folder).code == 0
    (file,) = (tmp_path / "checkpoints").glob("epoch-*")
    assert file.stem == "epoch-0001"
    assert "holds 1 checkpoint(s) of an earlier run" in refusal(*folder)
    assert len(summary("--epochs", "2", *folder, "--resume")["epochs"]) == 2


def test_without_out_nothing_is_written_beside_the_checkpoint(ended, tmp_path):
    finished = ended(cwd=tmp_path)
    assert finished.code == 0
    assert list(tmp_path.iterdir()) == []
    assert "epoch 1: " in finished.stderr


@pytest.mark.parametrize("combination", every())
def test_fp16_allreduce(combination, digits, summaries, pools):
    flags = ("--data-dir", str(digits), "--epochs", "1")
    if combination.engine == "mpi":
        program = (MNIST, "--framework", combination.framework, *flags, "--fp16-allreduce")
        for finished in run_inside(pools.get(combination), *program):
            (line,) = error_lines(finished)
            assert finished.code == 1
            assert "engine 'mpi' cannot sum half precision" in line
        return
    halved = summaries.inside(combination, *flags, "--fp16-allreduce")
    assert len(set(halved["weights_sha256"])) == 1
    assert weights(halved) != weights(summaries.inside(combination, *flags))
