"""Checks on neutral data, and the synthetic set."""

from __future__ import annotations

import numpy as np
import pytest

from hvdkit import Data, datasets
from hvdkit.errors import DataError

X = np.zeros((4, 5, 5, 1), np.float32)
Y = np.array([0, 1, 2, 1])


def with_value(array: np.ndarray, index: tuple[int, ...], value: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = value
    return changed


BAD = [
    (Data((X[:0], Y[:0])), "train data is empty: x has shape (0, 5, 5, 1)"),
    (Data((X, Y[:3])), "train data: x has 4 samples but y has 3"),
    (Data((X, Y), (X[:2], Y)), "validation data: x has 2 samples but y has 4"),
    (Data((X, Y), (X[:0], Y[:0])), "validation data is empty"),
    (Data((X, Y), (X[:, :4], Y)), "train samples have shape (5, 5, 1) but validation samples (4, 5, 1)"),
    (Data((X, Y.astype(float)), classes=3), "labels must be integers of shape (samples,), but are float64"),
    (Data((X, np.eye(3, dtype=int)[Y]), classes=3), "but are int64 of shape (4, 3)"),
    (Data((X, Y), classes=2), "label 2 at index 2 is out of range; 2 classes allow 0 to 1"),
    (Data((X, Y - 1), classes=3), "label -1 at index 0"),
    (Data((with_value(X, (2, 1, 3, 0), np.nan), Y)), "x holds nan at index (2, 1, 3, 0)"),
    (Data((with_value(X, (3, 0, 0, 0), -np.inf), Y)), "x holds -inf at index (3, 0, 0, 0)"),
    (Data((X, with_value(Y.astype(float), (1,), np.inf))), "y holds inf at index (1,)"),
    (Data((X[..., 0], Y)), "must have 4 dimensions (samples, height, width, channels); add the channel"),
    (Data((X.astype(object), Y)), "x is of type object"),
    (Data(([[0.0]], [0])), "train data must be a tuple (x, y) of two NumPy arrays, but is a tuple of list, list"),
    (Data(X), "but is a ndarray"),
]


@pytest.mark.parametrize(("data", "expected"), BAD, ids=[expected[:40] for _, expected in BAD])
def test_bad_data_is_refused_in_one_line(data: Data, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        datasets.check(data, rank=4)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_good_data_passes() -> None:
    datasets.check(Data((X, Y), (X[:1], Y[:1]), classes=3), least=4, rank=4)
    datasets.check(Data((X[..., 0], Y.astype(np.float32))))
    datasets.check(Data((Y, Y)))


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(DataError, match="train data has 4 samples but needs 5 or more; use fewer processes"):
        datasets.check(Data((X, Y)), least=5)


def test_synthetic_is_always_alike_and_depends_on_the_seed() -> None:
    data, again, other = datasets.synthetic(50), datasets.synthetic(50), datasets.synthetic(50, seed=1)
    np.testing.assert_array_equal(data.train[0], again.train[0])
    np.testing.assert_array_equal(data.validation[1], again.validation[1])
    assert not np.array_equal(data.train[0], other.train[0])
    assert data.train[0].shape == (50, 28, 28, 1)
    assert data.validation[0].shape == (10, 28, 28, 1)
    datasets.check(data, rank=4)


def test_synthetic_is_learnable() -> None:
    data = datasets.synthetic(400, shape=(8, 8, 3), classes=4)
    (x, y), (held_x, held_y) = data.train, data.validation
    centres = np.stack([x[y == label].mean(axis=0) for label in range(4)])
    distance = ((held_x[:, None] - centres) ** 2).reshape(len(held_x), 4, -1).sum(-1)
    assert (distance.argmin(1) == held_y).mean() > 0.95
    assert abs(x.std() - 1) < 0.05


def test_synthetic_refuses_nonsense() -> None:
    with pytest.raises(DataError, match="samples=0"):
        datasets.synthetic(0)
