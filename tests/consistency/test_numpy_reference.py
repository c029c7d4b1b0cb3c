"""The reference itself: gradients against finite differences, rules against hand-worked numbers and each other."""

from __future__ import annotations

import math

import numpy as np
import numpy_models as models
import pytest
from cases import CASES
from numpy_optimizers import FoldedSgd, Sgd, rule_for
from numpy_reference import BATCH, blocks, clipped, distance, train, variants

import hvdkit


@pytest.mark.parametrize("model", ["softmax", "mlp", "embedding"])
def test_gradients_equal_finite_differences(model):
    weights, (x, y) = models.initial(model), models.samples(model, 7)
    _, gradients = models.loss_and_gradients(weights, x, y)
    assert gradients.keys() == weights.keys()
    for name, weight in weights.items():
        differences = np.zeros_like(weight)
        for place in np.ndindex(weight.shape):
            around = []
            for shift in (1e-5, -1e-5):
                moved = weight.copy()
                moved[place] += shift
                around.append(models.loss_and_gradients({**weights, name: moved}, x, y)[0])
            differences[place] = (around[0] - around[1]) / 2e-5
        np.testing.assert_allclose(gradients[name], differences, rtol=1e-6, atol=1e-9, err_msg=name)


# two updates of a weight 1.0 by the gradients 2.0 and -1.0, worked out on paper
BY_HAND = {
    "sgd": (hvdkit.SGD(0.1), 1 - 0.2 + 0.1),
    "momentum": (hvdkit.SGD(0.1, momentum=0.5), 1 - 0.2 - 0.1 * (0.5 * 2 - 1)),
    "nesterov": (hvdkit.SGD(0.1, momentum=0.5, nesterov=True), 1 - 0.1 * (2 + 0.5 * 2) - 0.1 * (-1 + 0.5 * 0)),
    "adagrad": (hvdkit.Adagrad(0.1, initial_accumulator=0, eps=0), 1 - 0.1 + 0.1 / math.sqrt(5)),
    # m: 1, 0; v: 1, 0.75; divided by 1 - 0.5^2 and 1 - 0.75^2
    "adam": (hvdkit.Adam(0.1, betas=(0.5, 0.75), eps=0), 1 - 0.1 - 0.0),
    "adamw": (hvdkit.AdamW(0.1, betas=(0.5, 0.75), eps=0, weight_decay=1), (1 * 0.9 - 0.1) * 0.9),
}


@pytest.mark.parametrize("form", ["torch", "keras"])
@pytest.mark.parametrize("kind", BY_HAND)
def test_two_updates_are_what_the_papers_say(kind, form):
    source, expected = BY_HAND[kind]
    rule, weight = rule_for(source, (1,), form), np.array([1.0])
    for gradient in (2.0, -1.0):
        weight = rule.update(weight, np.array([gradient]), 0.1)
    assert weight[0] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("source", [hvdkit.Adam(0.1, eps=0.5), hvdkit.Adagrad(0.1, eps=0.5)])
def test_the_two_places_of_eps_differ(source):
    first, second = (
        rule_for(source, (1,), form).update(np.array([1.0]), np.array([2.0]), 0.1) for form in ("torch", "keras")
    )
    if isinstance(source, hvdkit.Adam):  # corrected m and sqrt(v) are both 2; uncorrected, sqrt(v) is 2 * sqrt(0.001)
        expected = 1 - 0.2 / 2.5, 1 - 0.2 * math.sqrt(0.001) / (2 * math.sqrt(0.001) + 0.5)
    else:
        expected = 1 - 0.2 / (math.sqrt(4.1) + 0.5), 1 - 0.2 / math.sqrt(4.6)
    assert (first[0], second[0]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_with_the_rate_folded_in_needs_the_correction(nesterov):
    generator = np.random.default_rng(0)
    rules = Sgd((3,), 0.9, nesterov), FoldedSgd((3,), 0.9, nesterov), FoldedSgd((3,), 0.9, nesterov, corrected=False)
    weights = [np.ones(3)] * 3
    for step in range(20):
        gradient, lr = generator.normal(size=3), 0.1 * (step + 1)
        weights = [rule.update(weight, gradient, lr) for rule, weight in zip(rules, weights, strict=True)]
    plain, folded, uncorrected = weights
    np.testing.assert_allclose(folded, plain, rtol=1e-12)
    assert abs(uncorrected - plain).max() > 0.1


def test_clipping_leaves_small_gradients_and_shortens_large_ones():
    gradients = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    assert clipped(gradients, 5.0)["b"] == [[4.0]]
    short = clipped(gradients, 1.0)
    assert np.concatenate([short["a"], short["b"][0]]) == pytest.approx([0.6, 0.0, 0.8])


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_every_case_has_20_updates_and_ends_that_do_not_fit(name, size):
    case = CASES[name]
    lengths = [len(block) for block in blocks(case, size)]
    assert len(lengths) >= 20
    assert len(lengths) == case.updates_per_epoch(size) * case.epochs(size)
    assert max(lengths) == BATCH * size * case.accumulate
    assert case.uneven == "drop" or min(lengths) < max(lengths)


@pytest.mark.parametrize("name", CASES)
def test_what_a_case_names_moves_the_weights_far_out_of_the_band(name):
    case, before = CASES[name], models.initial(CASES[name].model)
    expected = train(case, 2, "torch")
    for what, variant in variants(case).items():
        far = distance(train(variant, 2, "torch"), expected, before)
        assert far > 1e-3, what
