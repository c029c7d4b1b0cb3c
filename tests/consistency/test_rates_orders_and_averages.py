"""Cases that give other jobs wrong results: learning rates, orders, states and averages, in every framework."""

from __future__ import annotations

import itertools

import pytest
from cells import pairs

import hvdkit

PAIRS = pairs()


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d01_averages_count_samples_and_unmasked_entries(ranks):
    def body(framework):
        import case_parts as parts
        import numpy as np

        hk = parts.verbs(framework)
        rank = hk.init().rank
        accuracy = hk.average({"accuracy": [1.0, 0.0][rank]}, count=[90, 10][rank])["accuracy"]
        right = np.array([[1, 1, 1, 0], [1, 0, 0, 0]][rank], float)
        mask = np.array([[1, 1, 1, 1], [0, 1, 0, 0]][rank], float)
        return accuracy, hk.average((right * mask).sum() / mask.sum(), count=mask.sum())

    for accuracy, masked in ranks.run(body, ranks.combination.framework):
        assert accuracy == pytest.approx(0.9, abs=1e-12)
        assert masked == pytest.approx(3 / 5, abs=1e-12)


@pytest.mark.parametrize("rule", ["linear", "sqrt", "none"])
@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d03_the_rate_is_scaled_once_and_shown(ranks, rule):
    def body(framework):
        import case_parts as parts

        model = parts.net(framework)
        mine = parts.optimizer_for(framework, model, "SGD", 0.1)
        recipe = hvdkit.Recipe(
            model=lambda: model,
            data=hvdkit.Data(train=parts.samples(16)),
            optimizer=(lambda _: mine) if framework == "torch" else (lambda: mine),
            batch_size=4,
            scale_lr=hvdkit.ScaleLR(rule),
        )
        trainer = hvdkit.apply(recipe, framework)
        again = parts.complaint(hvdkit.apply, recipe, framework)
        trainer.fit()
        return parts.rate(framework, trainer.optimizer), again, trainer.summary()

    expected = {"linear": 0.2, "sqrt": 0.1 * 2**0.5, "none": 0.1}[rule]
    for rate, again, summary in ranks.run(body, ranks.combination.framework):
        assert rate == pytest.approx(expected, rel=1e-6)
        factor = {"linear": " (0.1 x 2)", "sqrt": " (0.1 x 1.41421)", "none": ""}[rule]
        assert summary.endswith(f"learning rate {expected:g}{factor}")
        # the same optimizer in a second apply
        assert "distributed already" in again


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d05_every_epoch_has_its_order_and_a_resumed_one_the_same(ranks):
    def body(framework):
        import case_parts as parts
        import numpy as np

        hk = parts.verbs(framework)
        y = np.arange(20)

        def epochs(batches, numbers):
            found = []
            for number in numbers:
                batches.set_epoch(number)
                found.append([int(label) for _, labels in batches for label in np.asarray(labels)])
            return found

        x = np.zeros((20, 2), "float32")
        whole, resumed = hk.shard((x, y), 5, seed=3), hk.shard((x, y), 5, seed=3)
        return epochs(whole, range(3)), epochs(resumed, [2])

    (mine, my_last), (others, other_last) = ranks.run(body, ranks.combination.framework)
    for first, second in zip(mine, others, strict=True):
        assert sorted(first + second) == list(range(20))
    assert all(first != second for first, second in itertools.combinations(mine, 2))
    assert (my_last, other_last) == (mine[2:], others[2:])


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d07_ranks_that_start_different_agree_from_the_first_step_on(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank = hk.init().rank
        model = parts.net(framework, seed=rank)
        optimizer = hk.distribute(parts.optimizer_for(framework, model, "Adam", 0.1), model)
        before = parts.state(framework, model, optimizer)[0]
        hk.broadcast(model, optimizer)
        states = []
        for x, y in hk.shard(parts.samples(16), 4):
            parts.update(framework, model, optimizer, x, y)
            states.append(parts.state(framework, model, optimizer))
        return before, states

    (before, states), (other, others) = ranks.run(body, ranks.combination.framework)
    assert before != other
    assert states == others
    assert states[0] != states[1]


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d07_a_model_without_variables_yet_is_refused_until_it_is_called(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank, (x, y) = hk.init().rank, parts.samples(8)
        if framework == "torch":
            import torch

            torch.manual_seed(rank)
            model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Tanh(), torch.nn.LazyLinear(parts.CLASSES))
            x, y = torch.from_numpy(x), torch.from_numpy(y)
        else:
            import keras

            keras.utils.set_random_seed(rank)
            model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(parts.CLASSES)])
        text = parts.complaint(hk.broadcast, model)
        model(x)
        optimizer = hk.distribute(parts.optimizer_for(framework, model, "SGD", 0.1), model)
        hk.broadcast(model, optimizer)
        parts.update(framework, model, optimizer, x[rank::2], y[rank::2])
        return text, parts.state(framework, model, optimizer)

    (text, state), (other_text, other) = ranks.run(body, ranks.combination.framework)
    assert text == other_text
    assert text.startswith("ModelError: ")
    assert "on a batch first" in text
    assert state == other


@pytest.mark.parametrize("kind", ["SGD", "momentum", "AdamW"])
@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d09_what_rank_0_has_loaded_reaches_every_rank(ranks, kind):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank, (x, y) = hk.init().rank, parts.samples(8)
        model = parts.net(framework, seed=rank)
        options = {"momentum": 0.9} if kind == "momentum" else {}
        optimizer = parts.optimizer_for(framework, model, kind if kind == "AdamW" else "SGD", 0.1, **options)
        if rank == 0:
            for _ in range(3):
                parts.update(framework, model, optimizer, x, y)
            parts.set_rate(framework, optimizer, 0.01)
            before = parts.state(framework, model, optimizer)
        hk.distribute(optimizer, model)
        hk.broadcast(model, optimizer)
        after = parts.state(framework, model, optimizer)
        return parts.rate(framework, optimizer), after, rank or before == after

    (rate, after, kept), (other_rate, other, _) = ranks.run(body, ranks.combination.framework)
    assert rate == other_rate == pytest.approx(0.01)
    assert kept
    assert after == other


@pytest.mark.parametrize("ranks", PAIRS, indirect=True)
def test_d14_gradients_of_norm_a_tenth_and_ten_are_clipped_once_after_their_mean(ranks):
    def body(framework):
        import case_parts as parts

        hk = parts.verbs(framework)
        rank, parameter = hk.init().rank, parts.vector(framework, [0.0, 0.0])
        optimizer = hk.distribute(parts.vector_optimizer(framework, parameter, 1.0), clip_norm=1.0)
        parts.push(framework, optimizer, parameter, [[0.1, 0.0], [0.0, 10.0]][rank])
        clipped = parts.numbers(parameter)
        parts.push(framework, optimizer, parameter, [[0.3, 0.0], [0.5, 0.0]][rank])
        return clipped, parts.numbers(parameter)

    norm = (0.05**2 + 5**2) ** 0.5
    for clipped, free in ranks.run(body, ranks.combination.framework):
        assert clipped == pytest.approx([-0.05 / norm, -5 / norm], rel=1e-5)
        assert free == pytest.approx([-0.05 / norm - 0.4, -5 / norm], rel=1e-5)
