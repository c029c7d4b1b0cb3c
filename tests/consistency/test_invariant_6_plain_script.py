"""Invariant 6: ``apply`` on one process without an engine gives, bit for bit, what a plain script gives.

torch: tests/backends/torch/test_torch_recipe.py; the eight verbs in scripts: tests/backends/tf/test_tf_size_one.py and
tests/examples/test_convert.py.
"""

from __future__ import annotations

import pytest
from cells import alone

import hvdkit

COUNT, BATCH, EPOCHS, SEED = 30, 8, 4, 5


def body(framework):
    import keras
    import keras_runs as runs
    import plain_scripts

    data, held_out = runs.samples(COUNT), runs.samples(9, seed=2)
    runs.fresh()
    recipe = hvdkit.Recipe(
        model=runs.small_net,
        data=hvdkit.Data(train=data, validation=held_out),
        optimizer=lambda: keras.optimizers.Adam(0.01),
        metrics=("accuracy",),
        batch_size=BATCH,
        seed=SEED,
    )
    trainer = hvdkit.apply(recipe, framework)
    history = trainer.fit(EPOCHS)
    runs.fresh()
    keras.utils.set_random_seed(SEED)
    model, optimizer = runs.small_net(), keras.optimizers.Adam(0.01)
    script = {"tf": plain_scripts.tf_loop, "keras": plain_scripts.fit}[framework]
    losses = script(model, optimizer, data, BATCH, EPOCHS, SEED)
    return (history.values("loss"), runs.state(trainer.model, trainer.optimizer)), (
        losses,
        runs.state(model, optimizer),
    )


@pytest.mark.parametrize("ranks", alone(("tf", "keras")), indirect=True)
def test_apply_on_one_process_is_the_plain_script(ranks):
    (((losses, state), (plain_losses, plain_state)),) = ranks.run(body, ranks.combination.framework)
    assert state == plain_state
    assert losses == pytest.approx(plain_losses, rel=1e-6)
