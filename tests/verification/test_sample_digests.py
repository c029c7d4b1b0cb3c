"""By what ``hvdkit verify`` knows a sample again."""

from __future__ import annotations

import numpy as np

from hvdkit.tools.verification.storage import sample_digests


def test_names_have_no_order_since_jax_sorts_them():
    a, b = np.arange(6.0).reshape(3, 2), np.arange(3.0) + 7
    found = sample_digests({"b": b, "a": (a, {"d": b, "c": a})}, {"y": a, "x": b})
    assert found == sample_digests({"a": (a, {"c": a, "d": b}), "b": b}, {"x": b, "y": a})
    assert len(set(found)) == 3
    assert found != sample_digests({"b": b, "a": (a, {"d": b, "c": a + 1})}, {"y": a, "x": b})


def test_the_order_of_a_list_counts():
    a, b = np.arange(3.0), np.arange(3.0) + 7
    assert sample_digests((a, b), a) != sample_digests((b, a), a)
    assert sample_digests([a, b], a) == sample_digests((a, b), a)
