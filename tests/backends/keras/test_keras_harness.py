"""The harness: a body in Keras starts as in a new process, whatever the bodies before it have set."""

from __future__ import annotations

import pytest
from ranks import on

ALONE = on("keras", sizes=(1,), engines=("serial",))


@pytest.mark.parametrize("ranks", ALONE, indirect=True)
def test_what_a_body_sets_for_all_of_keras_is_gone_in_the_next(ranks):
    def leave():
        import keras

        keras.utils.set_random_seed(7)
        keras.backend.set_floatx("float64")
        keras.layers.Dense(1)
        keras.mixed_precision.set_global_policy("mixed_bfloat16")

    def found():
        import keras

        layer = keras.layers.Dense(1)
        layer.build((None, 4))
        return layer.name, keras.backend.floatx(), layer.compute_dtype, layer.kernel.numpy()

    ranks.run(leave)
    name, floatx, dtype, first = ranks.run(found)[0]
    assert (name, floatx, dtype) == ("dense", "float32", "float32")
    ranks.run(leave)
    assert (ranks.run(found)[0][3] == first).all()
