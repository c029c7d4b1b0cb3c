"""``examples/faulty``: recipes with one fault each, which ``hvdkit verify`` names."""

from __future__ import annotations

import pytest
from ranks import on
from verify_runs import ROOT, run_verify

FAULTS = {
    "sharded_twice": ("recipe", "every rank has its own data; step 3 takes each rank's part"),
    "seeded_by_rank": ("broadcast", "Recipe.broadcast is None: give hvdkit.Broadcast()"),
    "scaled_twice": ("scale_lr", "2 times too much: give the rate of one process"),
    "summed_loss": ("recipe", "is it a sum? take the mean"),
    "unaveraged_metrics": ("average", "Recipe.average is None: give hvdkit.Average()"),
}
FIRST = ("sharded_twice", "unaveraged_metrics")
# refused by hvdkit.keras itself
WITHOUT_KERAS = ("summed_loss", "unaveraged_metrics")


def cases():
    """Return every example on its frameworks, of which two in torch run every time."""
    for entry in [*on("torch", ("torch",)), *on("tf", ("mpi",)), *on("keras", ("mpi",))]:
        combination = entry.values[0]
        for name in FAULTS:
            if combination.framework != "keras" or name not in WITHOUT_KERAS:
                marks = [
                    *entry.marks,
                    *([] if combination.framework == "torch" and name in FIRST else [pytest.mark.slow]),
                ]
                yield pytest.param(name, combination, marks=marks, id=f"{combination.framework}-{name}")


@pytest.mark.parametrize(("name", "combination"), list(cases()))
def test_the_fault_of_an_example_is_named(name, combination):
    report, finished = run_verify(f"examples/faulty/{name}.py", combination, "--steps", "4")
    assert finished.code == 1, finished.stdout + finished.stderr
    step, words = FAULTS[name]
    assert report["fault"]["step"] == step, report["fault"]
    assert words in report["fault"]["found"]


@pytest.mark.slow
@pytest.mark.parametrize("combination", on("keras", ("mpi",)))
def test_a_loss_that_is_a_sum_is_refused_in_keras(combination):
    report, finished = run_verify("examples/faulty/summed_loss.py", combination, "--steps", "4")
    assert finished.code == 1, finished.stdout + finished.stderr
    assert "the loss 'keras_loss' returns the sum of a batch" in report["error"]


@pytest.mark.parametrize("ranks", [*on("keras", ("serial",), (1,)), *on("tf", ("serial",), (1,))], indirect=True)
def test_a_loss_that_says_it_is_a_sum_is_refused(ranks):
    framework = ranks.combination.framework

    def body(name):
        import hvdkit
        from hvdkit.keras_common.compat import keras

        inputs = keras().Input((2,))
        recipe = hvdkit.Recipe(
            model=lambda: keras().Model(inputs, keras().layers.Dense(2)(inputs)),
            data=lambda: hvdkit.datasets.synthetic(8, (2,), 2),
            loss=keras().losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum"),
            optimizer=hvdkit.SGD(lr=0.1),
        )
        try:
            hvdkit.apply(recipe, name)
        except hvdkit.errors.RecipeError as error:
            return str(error)

    assert ranks.run(body, framework) == ["the loss has reduction='sum'; hvdkit needs the mean of a batch"]


def test_every_example_is_run():
    files = {path.stem for path in (ROOT / "examples" / "faulty").glob("*.py")}
    assert files - {"small_net"} == set(FAULTS)


@pytest.mark.slow
@pytest.mark.parametrize("combination", [*on("torch", ("torch",)), *on("keras", ("mpi",))])
def test_what_the_examples_share_is_right(combination):
    _, finished = run_verify("examples/faulty/small_net.py:small_recipe", combination, "--steps", "4")
    assert finished.code == 0, finished.stdout + finished.stderr
