"""What all tests share: the fixtures ``ranks`` (see ``ranks.py``) and ``promised``, and the marker ``processes``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy.testing  # noqa: F401 - it starts a process where it is first imported
import pytest
import signals
from limits import Calibration
from ranks import Combination, Pool

from hvdkit.process.environment import ensure_home

HELD_AT_ONCE = 3
STARTING_FIXTURES = {"ranks", "pools", "launch", "summaries", "archive"}
STARTING_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


class Pools:
    """The pools of this session; the one that was used longest ago goes when there are too many."""

    def __init__(self) -> None:
        self._pools: dict[tuple[Any, ...], Pool] = {}

    def get(self, combination: Combination) -> Pool:
        """Return the pool of a combination."""
        pool = self._pools.pop(combination.shares, None) or Pool(combination)
        pool.combination = combination
        self._pools[combination.shares] = pool
        if len(self._pools) > HELD_AT_ONCE:
            self._pools.pop(next(iter(self._pools))).close()
        return pool

    def close(self) -> None:
        """End all ranks."""
        for pool in self._pools.values():
            pool.close()


class StartGuard:
    """Fails a test that starts a process without the marker ``processes``."""

    def __init__(self) -> None:
        self.closed = False
        sys.addaudithook(self._hear)

    def _hear(self, event: str, _arguments: tuple[Any, ...]) -> None:
        if self.closed and event in STARTING_EVENTS:
            raise AssertionError(f"{event}: this test starts a process; mark it with pytest.mark.processes")


START_GUARD = StartGuard()


def pytest_configure() -> None:
    """Give processes that tests start all signals, and a home, without which no command of Open MPI runs."""
    ensure_home()
    signals.hear_all()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that start processes by what they ask for."""
    if _combination(item) is not None or STARTING_FIXTURES & set(getattr(item, "fixturenames", ())):
        item.add_marker("processes")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring tests that share ranks together, in whatever order, so that each pool is started once."""
    order: dict[tuple[Any, ...] | None, int] = {}
    items.sort(key=lambda item: order.setdefault(_pool(item), len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Close the guard while a test runs that may start no process."""
    START_GUARD.closed = item.get_closest_marker("processes") is None
    try:
        return (yield)
    finally:
        START_GUARD.closed = False


def _parameters(item: pytest.Item) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return callspec.params if callspec is not None else {}


def _combination(item: pytest.Item) -> Combination | None:
    found = [value for value in _parameters(item).values() if isinstance(value, Combination)]
    return found[0] if found else None


def _pool(item: pytest.Item) -> tuple[Any, ...] | None:
    combination = _parameters(item).get("ranks")
    return combination.shares if combination is not None else None


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    held = Pools()
    yield held
    held.close()


@pytest.fixture
def ranks(request: pytest.FixtureRequest, pools: Pools) -> Pool:
    """Two or more tests in a row share one pool."""
    return pools.get(request.param)


@pytest.fixture
def promised() -> Iterator[Calibration]:
    """How long what is promised in seconds may take here: ``elapsed < promised(15.0, since=began)``."""
    with Calibration() as calibration:
        yield calibration
