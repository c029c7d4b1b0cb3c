"""Random numbers in Keras models: drawn again from where the generators stood, or switched off."""

from __future__ import annotations

import pytest
from gallery_runs import GALLERY
from ranks import on

NETS = ("convolutions", "recurrent", "transformer", "vae")


@pytest.mark.parametrize("ranks", on("tf", ("serial",), (1,)), indirect=True)
def test_passes_repeat_and_layers_of_keras_draw_nothing_once_frozen(ranks):
    def body(folder, names):
        import sys

        sys.path.insert(0, folder)
        import keras_models as nets
        import numpy as np

        import hvdkit
        from hvdkit.tools.verification.framework_view import view_of

        view, found = view_of("tf"), {}
        for name in names:
            build = getattr(nets, name) if name != "vae" else lambda: nets.vae(plain=True)
            recipe = hvdkit.Recipe(model=build, data=nets.flat(), optimizer=hvdkit.SGD(lr=0.1))
            model = view.build(recipe)
            inputs = {
                "convolutions": nets.images().train[0][:4],
                "vae": nets.pixels().train[0][:4],
            }.get(name, nets.texts().train[0][:4])
            model(inputs)
            before = view.draws(model)
            random = view.is_random(model, inputs)
            after = view.draws(model)
            moved = [key for key in before if key.startswith("seed") and not np.array_equal(before[key], after[key])]
            found[name] = (random, moved, view.randomness(recipe, model, (inputs, None)))
        return found

    [found] = ranks.run(body, str(GALLERY), NETS)
    assert found == {name: (True, [], "kept" if name == "vae" else "replayed") for name in NETS}
