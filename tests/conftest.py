"""The fixture ``ranks``; see ``ranks.py``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Combination, Pool

HELD_AT_ONCE = 3


class Pools:
    """The pools of this session; the one that was used longest ago goes when there are too many."""

    def __init__(self) -> None:
        self._pools: dict[Combination, Pool] = {}

    def get(self, combination: Combination) -> Pool:
        """Return the pool of a combination."""
        pool = self._pools.pop(combination, None) or Pool(combination)
        self._pools[combination] = pool
        if len(self._pools) > HELD_AT_ONCE:
            self._pools.pop(next(iter(self._pools))).close()
        return pool

    def close(self) -> None:
        """End all ranks."""
        for pool in self._pools.values():
            pool.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring tests that share ranks together, so that each combination is started once."""
    order: dict[Combination | None, int] = {None: 0}
    items.sort(key=lambda item: order.setdefault(_combination(item), len(order)))


def _combination(item: pytest.Item) -> Combination | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("ranks") if callspec is not None else None


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    held = Pools()
    yield held
    held.close()


@pytest.fixture
def ranks(request: pytest.FixtureRequest, pools: Pools) -> Pool:
    """Two or more tests in a row share one pool."""
    return pools.get(request.param)
