"""The largest term of which every rank may send one, so that their sum in 16 bits stays finite."""

import numpy as np
import pytest

from hvdkit.training.narrow import largest_term


def in_pairs(terms):
    while len(terms) > 1:
        rest = terms[-1:] if len(terms) % 2 else terms[:0]
        terms = np.concatenate([terms[: len(terms) // 2 * 2 : 2] + terms[1 : len(terms) // 2 * 2 : 2], rest])
    return terms[0]


@pytest.mark.parametrize("size", range(2, 129))
def test_r09_a_sum_of_largest_terms_is_finite_in_whatever_order_it_is_formed(size):
    terms = np.full(size, largest_term("fp16", size), np.float32).astype(np.float16)
    total = np.float16(0)
    for term in terms:
        total = np.float16(total + term)
    assert np.isfinite(total)
    assert np.isfinite(in_pairs(terms))


@pytest.mark.parametrize("size", [2, 3, 8, 100])
def test_r09_the_limit_takes_little_of_the_range(size):
    assert largest_term("fp16", size) * size > 0.9 * 65504
    assert largest_term("bf16", size) * size > 0.6 * 3.38e38
