"""How many updates of which samples are verified, and at which rates."""

from __future__ import annotations

import numpy as np
import pytest

import hvdkit
from hvdkit.errors import RecipeError
from hvdkit.recipe.plan import LearningRate, scale_factor
from hvdkit.tools.verification.layout import Layout, check_dtype, cut, expected_rate, global_batch


def recipe(**options):
    return hvdkit.Recipe(model="mnist_cnn", data=lambda: 1, optimizer=hvdkit.SGD(0.1), batch_size=4, **options)


@pytest.mark.parametrize("samples", [5, 8, 9, 64, 67, 1000])
@pytest.mark.parametrize("uneven", ["exact", "drop"])
@pytest.mark.parametrize("steps", [1, 6])
def test_an_epoch_ends_as_on_all_the_data(samples, uneven, steps):
    asked = recipe(shard=hvdkit.Shard(uneven=uneven))
    if uneven == "drop" and samples < 8:
        return
    layout = Layout.fit(asked, samples, 2, steps, "float32")
    assert layout.epochs >= 3  # to resume from a first and from a later file
    assert layout.updates >= steps
    assert layout.samples <= samples
    assert layout.samples % 8 == samples % 8 or layout.samples == samples
    full = layout.samples // 8 if uneven == "drop" else -(-layout.samples // 8)
    assert full == layout.steps


def test_a_stream_is_verified_by_its_steps():
    layout = Layout.fit(recipe(steps_per_epoch=4), None, 2, 6, "float32")
    assert (layout.epochs, layout.steps, layout.samples) == (3, 2, None)
    assert Layout.fit(recipe(), 10**6, 2, 20, "float32").updates == 20


def test_passes_count_in_the_global_batch():
    assert global_batch(recipe(distribute=hvdkit.Distribute(accumulate=3)), 2) == 24


def test_the_rates_of_the_contract_are_those_of_the_recipe():
    asked = recipe(scale_lr=hvdkit.ScaleLR("sqrt", warmup_epochs=1.5), schedule=lambda epoch: 0.5 ** int(epoch))
    layout = Layout(4, 3, 5, None, "float32")
    rates = LearningRate(0.1, 0.1 * scale_factor("sqrt", 4), 5, 1.5, asked.schedule)
    assert [expected_rate(asked, 0.1, layout, step) for step in range(15)] == pytest.approx(
        [rates.at(step) for step in range(15)]
    )


def test_data_are_cut_and_cast():
    x, y = np.zeros((20, 3), np.float32), np.arange(20)
    data = cut(hvdkit.Data(train=(x, y), validation=(x, y)), Layout(2, 2, 1, 9, "float64"), 6)
    assert (data.train[0].dtype, data.train[0].shape) == (np.float64, (9, 3))
    assert data.train[1].tolist() == list(range(9))
    assert len(data.validation[0]) == 14  # two whole batches, and what is left at the end


def test_other_dtypes_are_refused():
    with pytest.raises(RecipeError, match="dtype 'float16' is unknown; use one of float32, float64"):
        check_dtype("float16")
