"""Cases that give other jobs wrong results: accumulated, compressed and infinite gradients, in every framework."""

from __future__ import annotations

import numpy as np
import pytest
from cells import pairs
from ranks import on

import hvdkit

PAIRS = pairs()
FOUR = [
    pytest.param(*entry.values, marks=[*entry.marks, pytest.mark.slow], id=entry.id)
    for framework, engine in (("torch", "torch"), ("torch", "horovod"), ("tf", "horovod"))
    for entry in on(framework, (engine,), (4,))
]


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d15_ten_passes_by_four_are_three_updates_an_epoch(ranks):
    def body(framework):
        import case_parts as parts

        from hvdkit.training.observers import Observer

        steps = []

        class Count(Observer):
            def on_step_end(self, trainer):
                steps.append((trainer.epoch, parts.state(framework, trainer.model, trainer.optimizer)))

        recipe = hvdkit.Recipe(
            model=lambda: parts.net(framework),
            data=hvdkit.Data(train=parts.samples(80)),
            optimizer=hvdkit.SGD(0.05, momentum=0.9),
            batch_size=4,
            epochs=2,
            scale_lr=None,
            distribute=hvdkit.Distribute(accumulate=4),
            observers=(Count(),),
            seed=5,
        )
        try:
            trainer = hvdkit.apply(recipe, framework)
        except hvdkit.errors.ModelError as error:
            return str(error)
        start = {name: value.copy() for name, value in trainer.weights().items()}
        trainer.fit()
        return [epoch for epoch, _ in steps], steps[-1][1], expected(framework, start, trainer.weights())

    def expected(framework, start, found):
        """Return how far the run is from one process that takes 32, 32 and 16 samples an update."""
        import case_parts as parts

        from hvdkit.recipe.plan import ShardPlan

        x, y = parts.samples(80)
        alone = parts.net(framework)
        optimizer = parts.optimizer_for(framework, alone, "SGD", 0.05, momentum=0.9)
        for epoch in range(2):
            order = ShardPlan(80, 8, seed=5).order(epoch)
            for rows in (order[:32], order[32:64], order[64:]):
                parts.update(framework, alone, optimizer, x[rows], y[rows])
        whole = parts.weights(framework, alone)
        moved = sum(np.sum((a - b) ** 2) for a, b in zip(whole, start.values(), strict=True))
        return (sum(np.sum((a - b) ** 2) for a, b in zip(whole, found.values(), strict=True)) / moved) ** 0.5

    first, second = ranks.run(body, ranks.combination.framework)
    if isinstance(first, str):
        assert first == second == "Keras 2 optimizers cannot accumulate gradients; use accumulate=1, or Keras 3"
        return
    assert first[:2] == second[:2]
    assert first[0] == [0, 0, 0, 1, 1, 1]
    assert first[2] < 1e-4


@pytest.mark.parametrize("ranks", [*PAIRS, *FOUR], indirect=True)
def test_d19_half_precision_loses_little_and_overflows_never(ranks):
    def body(framework, value):
        import case_parts as parts

        hk = parts.verbs(framework)
        hk.init()
        parameter = parts.vector(framework, [0.0, 0.0])
        optimizer = parts.vector_optimizer(framework, parameter, 1.0)
        text = parts.complaint(hk.distribute, optimizer, compression="fp16")
        if text:
            return text
        parts.push(framework, optimizer, parameter, [value, 1.0])
        return [-number for number in parts.numbers(parameter)]

    framework = ranks.combination.framework
    for value, limits in ((1e-8, (0.0, 7e-8)), (4e4, (3.99e4, 4.01e4)), (1e6, (6.5e4, 1.001e6))):
        for found in ranks.run(body, framework, value):
            if ranks.engine == "mpi":
                assert found == "EngineError: engine 'mpi' cannot sum half precision; use compression='none'"
                continue
            assert limits[0] <= found[0] <= limits[1]
            assert found[1] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d19_an_infinite_gradient_of_one_rank_stays_infinite_on_all(ranks):
    """Nothing may turn it into a large number: who looks for overflow would not see it."""

    def body(framework, compression):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank, parameter = hk.init().rank, parts.vector(framework, [0.0, 0.0])
        optimizer = parts.vector_optimizer(framework, parameter, 1.0)
        if parts.complaint(hk.distribute, optimizer, compression=compression):
            return [float("-inf"), -1.0]
        parts.push(framework, optimizer, parameter, [float("inf") if rank else 1.0, 1.0])
        return parts.numbers(parameter)

    for compression in ("none", "fp16"):
        for found in ranks.run(body, ranks.combination.framework, compression):
            assert found == [float("-inf"), pytest.approx(-1.0, rel=1e-3)]
