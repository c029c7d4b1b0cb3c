"""Every framework, engine and number of processes against the reference in NumPy (invariants 1 and 2)."""

from __future__ import annotations

import pytest
from cases import CASES
from cells import matrix
from numpy_models import initial
from numpy_reference import distance, train

BANDS = {"float64": 1e-10, "float32": 1e-4}
FEW = ("momentum_warmup", "adam_l2_pad", "adamw_drop", "embedding_adagrad", "accumulated_adam_clip")


def body(*arguments):
    from framework_runs import trained

    from hvdkit.errors import HvdkitError

    try:
        return trained(*arguments)
    except HvdkitError as error:
        return f"{type(error).__name__}: {error}"


def check(ranks, name, dtype):
    case, (framework, library) = CASES[name], (ranks.combination.framework, ranks.combination.library)
    results = ranks.run(body, framework, name, dtype)
    first = results[0]
    if isinstance(first, str):
        assert set(results) == {first}
        pytest.skip(refusal(case, first))
    size = ranks.size
    updates = case.updates_per_epoch(size) * case.epochs(size)
    expected = train(case, size, "torch" if framework == "torch" else "keras")
    far = [distance(result["weights"], expected, initial(case.model)) for result in results]
    assert max(far) <= BANDS[dtype]
    assert all(result["states"] == first["states"] for result in results)
    if library == "jax":
        # Keras keeps its variables out of reach until fit ends
        assert first["rates"] == pytest.approx([case.rate(updates - 1, size)])
        return
    # one more note is made at the end
    assert first["rates"] == pytest.approx([case.rate(min(step, updates - 1), size) for step in range(updates + 1)])
    assert len(set(first["states"])) == updates


def refusal(case, message):
    """Return the reason why a cell need not run this case; fail for any other message."""
    if case.accumulate > 1 and "Keras 2 optimizers cannot accumulate gradients" in message:
        return message
    raise AssertionError(message)


@pytest.mark.parametrize(("ranks", "name"), matrix(CASES, FEW), indirect=["ranks"])
def test_weights_are_the_references_and_ranks_agree_after_every_update(ranks, name):
    # Keras's own layers compute in float32 on torch and on JAX, whatever the type of their weights
    check(ranks, name, "float32" if ranks.combination.env else "float64")


@pytest.mark.parametrize(("ranks", "name"), matrix(FEW, FEW[-1:]), indirect=["ranks"])
def test_weights_are_the_references_in_single_precision(ranks, name):
    check(ranks, name, "float32")
