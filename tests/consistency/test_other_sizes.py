"""Files that are read on another number of processes, or that were saved inside an epoch."""

from __future__ import annotations

import pytest
from cells import alone, pairs
from ranks import Combination

PAIRS = pairs()
WHOLE_EPOCHS = pairs(("keras",))
LOOPS = pairs(("torch", "tf"))


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_r17_a_scaled_rate_is_scaled_for_the_processes_that_go_on(ranks, pools, tmp_path):
    def body(framework, path, lr, goes_on):
        import case_parts as parts

        hk = parts.verbs(framework)
        hk.init()
        model = parts.net(framework)
        rate = hk.scale_lr(lr)
        optimizer = hk.distribute(parts.optimizer_for(framework, model, "SGD", rate, momentum=0.9), model)
        hk.broadcast(model, optimizer)
        if goes_on:
            kept = hk.restore(path, model, optimizer)
            assert kept == {"epoch": 3}
        else:
            hk.save(path, model, optimizer, epoch=3)
        return parts.rate(framework, optimizer)

    framework = ranks.combination.framework
    path = str(tmp_path / ("saved.pt" if framework == "torch" else "saved.npz"))
    one = pools.get(Combination(framework, "serial", 1))
    assert ranks.run(body, framework, path, 0.1, False) == pytest.approx([0.2, 0.2])
    assert ranks.run(body, framework, path, 0.5, True) == pytest.approx([0.2, 0.2])
    assert one.run(body, framework, path, 0.5, True) == pytest.approx([0.1])
    one.run(body, framework, path, 0.3, False)
    assert ranks.run(body, framework, path, 0.1, True) == pytest.approx([0.6, 0.6])


@pytest.mark.parametrize("ranks", alone(), indirect=True)
def test_r17_a_trainer_refuses_a_file_of_another_global_batch(ranks, tmp_path):
    def body(framework, path):
        import case_parts as parts
        from complaints import complaint

        import hvdkit

        def trainer(batch):
            return hvdkit.apply(
                hvdkit.Recipe(
                    model=lambda: parts.net(framework),
                    data=hvdkit.Data(train=parts.samples(16)),
                    optimizer=hvdkit.SGD(0.1),
                    batch_size=batch,
                ),
                framework,
            )

        trainer(4).save(path)
        trainer(4).restore(path)
        return complaint(lambda: trainer(8).restore(path))

    (message,) = ranks.run(body, ranks.combination.framework, str(tmp_path / "saved.file.npz"))
    assert "was saved with a global batch of 4, this trainer has one of 8" in message


def saved_inside(framework, folder, stop):
    """Train with a file saved after the fifth of eight updates; go on from it; return both runs."""
    import case_parts as parts

    import hvdkit
    from hvdkit.training.observers import Observer

    suffix = parts.verbs(framework).SUFFIX

    class Saver(Observer):
        def on_step_end(self, trainer):
            if trainer.global_step == stop:
                trainer.save(f"{folder}/inside.{suffix}")

    def in_double(one, other):
        """A mean of numbers in double precision, of which sums show their order."""
        outputs = one if len(one.shape) == 2 else other
        if framework == "torch":
            return outputs.detach().double().mean()
        import tensorflow as tf

        return tf.reduce_mean(tf.cast(outputs, tf.float64), -1)

    def trainer(*observers):
        return hvdkit.apply(
            hvdkit.Recipe(
                model=lambda: parts.net(framework),
                data=hvdkit.Data(train=parts.samples(32), validation=parts.samples(10)),
                optimizer=hvdkit.SGD(0.1, momentum=0.9),
                metrics=("accuracy", in_double),
                batch_size=4,
                epochs=2,
                observers=observers,
            ),
            framework,
        )

    whole, resumed = trainer(Saver()), trainer()
    whole.fit()
    resumed.restore(f"{folder}/inside.{suffix}")
    assert (resumed.global_step, resumed.epoch) == (stop, (stop - 1) // 4)
    resumed.fit()
    apart = ("seconds", "samples_per_second")
    histories = [
        [{name: value for name, value in record.items() if name not in apart} for record in each.history.epochs]
        for each in (whole, resumed)
    ]
    return histories, [parts.state(framework, each.model, each.optimizer) for each in (whole, resumed)]


@pytest.mark.parametrize("stop", [1, 6, 8])
@pytest.mark.parametrize("ranks", LOOPS, indirect=True)
def test_r17_a_run_goes_on_from_a_file_that_was_saved_inside_an_epoch(ranks, stop, tmp_path):
    answers = ranks.run(saved_inside, ranks.combination.framework, str(tmp_path), stop)
    for (whole, resumed), (state, again) in answers:
        assert len(whole) == len(resumed) == 2
        for ours, theirs in zip(resumed, whole, strict=True):
            assert ours == theirs
        assert state == again


@pytest.mark.parametrize("ranks", WHOLE_EPOCHS, indirect=True)
def test_r17_keras_refuses_a_file_that_was_saved_inside_an_epoch(ranks, tmp_path):
    def body(folder):
        from complaints import complaint

        return complaint(lambda: saved_inside("keras", folder, 6))

    for message in ranks.run(body, str(tmp_path)):
        assert "was saved 2 steps into an epoch, and keras can only begin whole ones" in message
