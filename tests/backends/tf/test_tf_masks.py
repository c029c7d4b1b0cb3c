"""A loss with a mask in a tf recipe, where ranks are weighted by their samples."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import on


@pytest.mark.parametrize("ranks", on("tf", engines=("mpi",)), indirect=True)
def test_r11_a_recipe_in_tf_refuses_a_loss_that_divides_by_a_mask(ranks):
    def body():
        import keras
        import keras_runs as runs

        import hvdkit
        from hvdkit.errors import ModelError

        runs.fresh()

        def tagger():
            inputs = keras.Input((4,), dtype="int32")
            return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Embedding(7, 4, mask_zero=True)(inputs)))

        words = np.random.default_rng(4).integers(0, 7, (16, 4))
        recipe = hvdkit.Recipe(
            model=tagger, data=hvdkit.Data(train=(words, words % 3)), batch_size=4, epochs=1,
            optimizer=hvdkit.SGD(0.1), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )  # fmt: skip
        trainer = hvdkit.apply(recipe, "tf")
        before = [value.tobytes() for value in runs.values(trainer.model.weights)]
        try:
            trainer.fit()
        except ModelError as error:
            return str(error), before == [value.tobytes() for value in runs.values(trainer.model.weights)]

    for message, unchanged in ranks.run(body):
        assert "divides by the sum of a mask or of weights" in message
        assert "a recipe in tf cannot weight ranks; use hvdkit.keras without accumulation" in message
        assert unchanged
