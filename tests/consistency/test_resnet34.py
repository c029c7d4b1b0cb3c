"""ResNet34 is one network in every framework: the same weights, logits and losses.

Frameworks live in processes of their own. Each is held to a reference in NumPy, so that one framework alone shows a
fault, and those that are here to each other.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import resnet34_numpy
from ranks import Combination, on, unavailable

import hvdkit

JAX, TORCH = ({"KERAS_BACKEND": name} for name in ("jax", "torch"))
ALONE = [entry for framework in ("torch", "keras") for entry in on(framework, ("serial",), (1,))]
ELSEWHERE = [entry for env in (TORCH, JAX) for entry in on("keras", ("serial",), (1,), env)]
# the images of MNIST and of CIFAR-10 in small, and the stem for larger ones with an odd side, where padding shows
SHAPES = {"grey": (2, 20, 20, 1), "colour": (2, 16, 16, 3), "large stem": (2, 66, 65, 3)}
CLASSES, STEPS, BATCH = 7, 5, 8


def images(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def net_of(name):
    """Build the network of a shape with statistics, scales and shifts that are not those of the start."""
    from importlib import import_module

    framework = "torch" if name[0] == "torch" else "keras"
    models = import_module(f"hvdkit.{framework}.models")
    shape = SHAPES[name[1]]
    model = models.resnet34(shape[1:], CLASSES, seed=3, small_stem=shape[1] < 64)
    arrays = models.named_arrays(model)
    models.load_arrays(model, disturbed(arrays))
    return models, model, arrays


def disturbed(arrays):
    """Return arrays with other scales, shifts and statistics than those of the start, so that each counts."""
    random = np.random.default_rng(1)
    return {
        name: arrays[name] if arrays[name].ndim > 1 else random.uniform(0.5, 1.5, arrays[name].shape).astype(np.float32)
        for name in sorted(arrays)
    }


def logits(framework, name):
    """Return the initial weights, those that were set, and the logits; runs on a rank."""
    models, model, initial = net_of((framework, name))
    x = images(SHAPES[name])
    if framework == "torch":
        import torch

        model.eval()
        with torch.no_grad():
            outputs = model(torch.from_numpy(x).permute(0, 3, 1, 2)).numpy()
    else:
        outputs = model.predict(x, verbose=0)
    return initial, models.named_arrays(model), outputs


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_logits_are_the_references(ranks, name):
    check_logits(ranks, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("ranks", ELSEWHERE, indirect=True)
def test_logits_of_keras_elsewhere_are_the_references(ranks, name):
    check_logits(ranks, name)


def check_logits(ranks, name):
    ((_, arrays, outputs),) = ranks.run(logits, ranks.combination.framework, name)
    expected = resnet34_numpy.logits(images(SHAPES[name]), arrays, SHAPES[name][1] < 64)
    assert outputs.shape == expected.shape == (2, CLASSES)
    assert relative(outputs, expected) <= 1e-4


def relative(found, expected):
    return np.abs(found - expected).max() / np.abs(expected).max()


def run_everywhere(pools, frameworks, body, *args):
    """Run a body in each framework that is here; skip if there are no two."""
    here = [one for one in (Combination(name, "serial", 1) for name in frameworks) if not unavailable(one)]
    if len(here) < 2:
        pytest.skip("there are no two frameworks here")
    return {one.framework: pools.get(one).run(body, one.framework, *args)[0] for one in here}


def test_weights_are_equal_and_make_the_round_trip(pools):
    found = run_everywhere(pools, ("torch", "keras"), logits, "colour")
    (initial, carried, outputs), (other_initial, other_carried, other_outputs) = found["torch"], found["keras"]
    assert len(initial) == 182
    for first, second in ((initial, other_initial), (carried, other_carried), (carried, disturbed(initial))):
        assert set(first) == set(second)
        assert all(np.array_equal(first[name], second[name]) for name in first)
    assert relative(outputs, other_outputs) <= 1e-4


def losses(framework, source):
    """Train some steps by a recipe; return the losses, and the statistics of BatchNorm before and after one step."""
    import importlib

    recipe = hvdkit.Recipe(
        model=source,
        data=lambda: hvdkit.datasets.synthetic(STEPS * BATCH, (16, 16, 3), CLASSES),
        optimizer=hvdkit.SGD(lr=0.01, momentum=0.9),
        batch_size=BATCH,
        seed=11,
        init=hvdkit.Init("serial"),
    )
    trainer = hvdkit.apply(recipe, framework=framework)
    models = importlib.import_module(f"hvdkit.{framework}.models")
    found, statistics = [], []
    for batch in trainer.batches:
        found.append(trainer.step(batch)["loss"])
        statistics = statistics or [models.named_arrays(trainer.model)]
    return found, statistics[0]


@pytest.fixture(scope="module")
def trained(pools):
    return run_everywhere(pools, ("torch", "tf", "keras"), losses, "resnet34")


def test_losses_of_five_steps_are_the_same(trained):
    curves = {framework: found for framework, (found, _) in trained.items()}
    for curve in curves.values():
        assert len(curve) == STEPS
        assert max(curve) - min(curve) > 0.1  # the net has changed, so that a wrong update would show
    for first, second in itertools.combinations(curves, 2):
        assert curves[first] == pytest.approx(curves[second], rel=1e-4), curves


def test_running_statistics_mean_the_same(trained):
    one, *others = (statistics for _, statistics in trained.values())
    for other in others:
        for name in one:
            if name.endswith("moving_mean"):
                assert relative(one[name], other[name]) <= 1e-3, name
            elif name.endswith("moving_variance"):
                # Keras 3 leaves out n / (n - 1), n at least 8 x 2 x 2 values here
                assert np.allclose(one[name] - 0.9, other[name] - 0.9, rtol=1 / 31 + 1e-3, atol=1e-6), name


@pytest.mark.parametrize(
    "ranks", [entry for name in ("torch", "tf", "keras") for entry in on(name, ("serial",), (1,))], indirect=True
)
def test_what_does_not_fit_is_refused(ranks):
    framework = ranks.combination.framework

    def body():
        import importlib

        models = importlib.import_module(f"hvdkit.{framework}.models")
        model = models.mnist_cnn()
        arrays = models.named_arrays(model)
        texts = []
        for wrong in (
            {name: value for name, value in arrays.items() if name != "conv2/bias"},
            {**arrays, "conv9/bias": arrays["conv2/bias"]},
            {**arrays, "conv2/bias": arrays["conv1/bias"]},
        ):
            with pytest.raises(hvdkit.errors.ModelError) as caught:
                models.load_arrays(model, wrong)
            texts.append(str(caught.value))
        data = hvdkit.datasets.synthetic(8, (16, 16, 3), 4)
        for less in (
            hvdkit.Data(train=data.train),
            hvdkit.Data(train=(data.train[0][:, 0, 0], data.train[1]), classes=4),
        ):
            recipe = hvdkit.Recipe(model="resnet34", data=less, optimizer=hvdkit.SGD(lr=0.1), batch_size=4)
            with pytest.raises(hvdkit.errors.RecipeError) as caught:
                hvdkit.apply(recipe, framework=framework)
            texts.append(str(caught.value))
        return texts

    (texts,) = ranks.run(body)
    assert texts[:3] == [
        "array 'conv2/bias' is missing",
        "array 'conv9/bias' is not in the model",
        "array 'conv2/bias' has shape (32,), which does not fit the model",
    ]
    assert all(text.startswith("model 'resnet34' takes image size and classes from hvdkit.Data(") for text in texts[3:])
