"""Cases of checkpoints and resumed runs, in every framework."""

from __future__ import annotations

from pathlib import Path

import pytest
from cells import alone, pairs
from ranks import but_horovod, launch_fresh, slowly

PAIRS = pairs()


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_e01_two_nodes_with_one_process_each_have_one_writer(ranks, tmp_path):
    """Both processes are the first of their node; only rank 0 of the job writes."""

    def body(framework, folder):
        import case_parts as parts

        hk = parts.verbs(framework)
        world = hk.init()
        model = parts.net(framework)
        optimizer = hk.distribute(parts.optimizer_for(framework, model, "SGD", 0.1), model)
        local_rank, world.local_rank = world.local_rank, 0
        try:
            hk.save(f"{folder}/of{world.rank}/file.{hk.SUFFIX}", model, optimizer, epoch=1)
        finally:
            world.local_rank = local_rank

    ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert [path.parent.name for path in tmp_path.rglob("file.*")] == ["of0"]


@pytest.mark.parametrize("ranks", pairs(("torch", "tf")), indirect=True)
def test_e04_a_loop_goes_on_from_the_epoch_that_only_rank_0_knows(ranks, tmp_path):
    def body(framework, folder):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank = hk.init().rank
        path = f"{folder}/of{rank}/two.{hk.SUFFIX}"  # no other rank sees this file

        def scheduled(model):
            """Return an optimizer with a warm-up over the first epoch, and what to call after each of its steps."""
            if framework == "torch":
                optimizer = parts.optimizer_for("torch", model, "SGD", 0.2, momentum=0.9)
                scheduler = hk.warmup(optimizer, base=0.1, steps_per_epoch=2, epochs=1)
                return optimizer, scheduler
            schedule = hk.warmup(0.2, base=0.1, steps_per_epoch=2, epochs=1)
            return parts.optimizer_for("tf", model, "SGD", schedule, momentum=0.9), None

        def train(last, seed, saved=None):
            model = parts.net(framework, seed)
            optimizer, scheduler = scheduled(model)
            hk.distribute(optimizer, model)
            first = 0
            if saved:
                kept = hk.restore(saved, model, optimizer)
                first = kept["epoch"]
                if scheduler:
                    scheduler.load_state_dict(kept["scheduler"])
            else:
                hk.broadcast(model, optimizer)
            batches, rates = hk.shard(parts.samples(16), 4, seed=1), []
            for epoch in range(first, last):
                batches.set_epoch(epoch)
                for x, y in batches:
                    parts.update(framework, model, optimizer, x, y)
                    rates.append((epoch + 1, round(parts.rate(framework, optimizer), 6)))
                    if scheduler:
                        scheduler.step()
            return model, optimizer, scheduler, rates

        model, optimizer, scheduler, _ = train(2, seed=0)
        hk.save(path, model, optimizer, epoch=2, scheduler=scheduler.state_dict() if scheduler else {})
        resumed, again, _, rates = train(5, seed=7 + rank, saved=path)
        whole, its, *_ = train(5, seed=0)
        return rates, parts.state(framework, resumed, again), parts.state(framework, whole, its)

    (rates, resumed, whole), (other_rates, other, _) = ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert rates == other_rates == [(epoch, 0.2) for epoch in (3, 4, 5) for _ in range(2)]
    assert resumed == whole == other


@pytest.mark.parametrize("ranks", pairs(("keras",)), indirect=True)
def test_e04_fit_goes_on_from_the_epoch_that_only_rank_0_knows(ranks, tmp_path):
    def body(folder):
        import case_parts as parts
        import keras
        import keras_runs as runs

        import hvdkit.keras as hk

        rank = hk.init().rank
        path = f"{folder}/of{rank}/two.npz"  # no other rank sees this file

        def train(last, seed, saved=None):
            model, rates = parts.net("keras", seed), []

            class Watch(keras.callbacks.Callback):
                def on_train_batch_end(self, batch, logs=None):
                    rates.append(round(parts.rate("keras", model.optimizer), 6))

            optimizer = hk.distribute(parts.optimizer_for("keras", model, "SGD", 0.2, momentum=0.9), model)
            model.compile(optimizer=optimizer, loss=runs.cross_entropy())
            first = hk.restore(saved, model, optimizer)["epoch"] if saved else 0
            batches = hk.shard(parts.samples(16), 4, seed=1)
            batches.set_epoch(first)
            kinds = hk.callbacks
            callbacks = [kinds.BroadcastGlobalVariablesCallback(0), kinds.MetricAverageCallback()]
            callbacks += [kinds.LearningRateWarmupCallback(0.2, warmup_epochs=1), Watch()]
            model.fit(batches, epochs=last, initial_epoch=first, callbacks=callbacks, shuffle=False, verbose=0)
            return model, rates

        model, _ = train(2, seed=0)
        hk.save(path, model, model.optimizer, epoch=2)
        resumed, rates = train(5, seed=7 + rank, saved=path)
        whole, all_rates = train(5, seed=0)
        return rates, all_rates, [parts.state("keras", each, each.optimizer) for each in (resumed, whole)]

    (rates, all_rates, (resumed, whole)), (other_rates, _, (other, _)) = ranks.run(body, str(tmp_path))
    assert rates == other_rates == all_rates[4:] == [0.2] * 6
    assert all_rates[0] < 0.2
    assert resumed == whole == other


KILLED = """
import hashlib, os, signal, sys
import hvdkit
import case_parts as parts

folder, framework, kill = sys.argv[1:]
replace, saves = os.replace, []

def dying(*paths):
    saves.extend(path for path in paths[1:] if "epoch-" in str(path))
    if kill == "kill" and len(saves) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(*paths)

os.replace = dying
trainer = hvdkit.apply(
    hvdkit.Recipe(
        model=lambda: parts.net(framework),
        data=hvdkit.Data(train=parts.samples(16)),
        optimizer=hvdkit.SGD(0.1, momentum=0.9),
        batch_size=4,
        epochs=4,
        checkpoint=hvdkit.Checkpoint(folder),
    ),
    framework,
)
print("begins after epoch", trainer.epoch)
trainer.fit()
state = b"".join(parts.state(framework, trainer.model, trainer.optimizer))
print("state", hashlib.sha256(state).hexdigest())
"""


def run(combination, folder, how="live"):
    here = Path(__file__).parent
    env = {"PYTHONPATH": f"{here.parents[1]}:{here.parent / 'support'}:{here}"}
    return launch_fresh(KILLED, combination.engine, combination.size, [str(folder), combination.framework, how], env)


@pytest.mark.parametrize("combination", [*but_horovod(pairs(("torch",))), *slowly(pairs(("tf", "keras")))])
def test_e03_a_run_killed_while_saving_goes_on_from_the_file_before(combination, tmp_path):
    killed, resumed = run(combination, tmp_path, "kill"), run(combination, tmp_path)
    assert killed.code != 0
    assert "begins after epoch 0" in killed.stdout
    assert resumed.code == 0, resumed.stderr
    assert "hvdkit: removed 1 half-written file(s) of a killed job in" in resumed.stderr
    assert resumed.stdout.count("begins after epoch 2") == 2
    first, second = (line.split("state ")[1] for line in resumed.stdout.splitlines() if "state " in line)
    assert first == second


@pytest.mark.parametrize("combination", [*alone(("torch",)), *slowly(alone(("tf", "keras")))])
@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 cut short"], ids=["empty", "text", "short"])
def test_s13_a_damaged_newest_file_is_told_and_the_one_before_is_used(combination, content, tmp_path):
    whole = run(combination, tmp_path)
    newest = max(tmp_path.glob("epoch-*"))
    newest.write_bytes(content)
    # a job that is killed between the two writes leaves a file without a digest
    words = f"is damaged: it has {len(content)} bytes, and had " if content else "cannot be read: "
    if not content:
        (tmp_path / "manifest.json").unlink()
    resumed = run(combination, tmp_path)
    assert resumed.code == 0, resumed.stderr
    assert "begins after epoch 3" in resumed.stdout
    before = newest.name.replace("4", "3")
    (line,) = (line for line in resumed.stderr.splitlines() if line.endswith(f"; going on from {before} instead"))
    assert line.startswith(f"hvdkit: checkpoint {newest} {words}")
    assert resumed.stdout.split("state ")[1] == whole.stdout.split("state ")[1]
