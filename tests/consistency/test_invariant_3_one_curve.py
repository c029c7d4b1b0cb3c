"""Invariant 3: the frameworks of this environment, each in a separate process, have one curve of losses.

In double precision: in single, rounding alone, which differs by processor, sooner or later decides which of two equal
values a pooling layer takes, and the curves part by 4 %.

The learning rate that momentum has folded in (Keras) is held to the reference in ``test_matrix.py``, ResNet34 in
``test_resnet34.py``.
"""

from __future__ import annotations

import pytest
from cells import alone
from ranks import unavailable

STEPS, BATCH = 50, 16
HERE = [entry for entry in alone() if not any(mark.name == "skip" for mark in entry.marks)]


def body(framework):
    from framework_runs import float_type

    from hvdkit.tools.verification.framework_view import view_of

    view = view_of(framework)
    try:
        # also without what Keras has kept of the type of other tests' layers
        with float_type(framework, "float64"):
            view.set_dtype("float64")
            return losses(framework)
    finally:
        view.set_dtype("float32")


def losses(framework):
    import hvdkit
    from hvdkit.datasets import synthetic

    x, y = synthetic(samples=STEPS * BATCH, shape=(28, 28, 1), classes=10).train
    recipe = hvdkit.Recipe(
        model="mnist_cnn",
        data=hvdkit.Data(train=(x.astype("float64"), y)),
        # both are exact in single precision, in which Keras keeps them
        optimizer=hvdkit.SGD(2.0**-7, momentum=0.875),
        batch_size=BATCH,
        seed=5,
        scale_lr=hvdkit.ScaleLR(warmup_epochs=0.2),
    )
    trainer = hvdkit.apply(recipe, framework)
    return [trainer.step(batch)["loss"] for batch in trainer.batches]


def test_50_steps_of_the_mnist_net_have_the_same_losses_in_all_frameworks(pools):
    if len(HERE) < 2:
        pytest.skip("one framework alone has nothing to be compared with")
    curves = {}
    for entry in HERE:
        combination = entry.values[0]
        assert not unavailable(combination)
        (curves[combination.framework],) = pools.get(combination).run(body, combination.framework)
    first, *others = curves
    assert len(curves[first]) == STEPS
    assert curves[first][-1] < 0.5 * curves[first][0]
    for other in others:
        assert curves[other] == pytest.approx(curves[first], rel=1e-9), (first, other)
