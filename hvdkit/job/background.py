"""Work beside training: one piece at a time in a thread, whose error is raised where the next one begins."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hvdkit.process import failures


class Background:
    """Does pieces of work one after another; a rank that fails meanwhile waits a moment for the one under way."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin a piece of work; the one before is finished."""
        failures.begin_work(self._wait)
        # the interpreter's own end waits for it
        self._thread = threading.Thread(target=self._do, args=(work,), name="hvdkit-background")
        self._thread.start()

    def finish(self) -> None:
        """Wait for the work under way.

        Raises:
            Exception: What it raised.
        """
        self._wait(None)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised where the next piece begins
            self._error = error
        finally:
            failures.end_work(self._wait)

    def _wait(self, seconds: float | None) -> None:
        if self._thread is not None:
            self._thread.join(seconds)
