"""One rank of a pool: joins the job, then runs the test bodies that arrive on a socket, one after another."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import random
import socket
import sys
import traceback
from multiprocessing.connection import Connection

import cloudpickle
import numpy as np

from hvdkit.job import world as worlds


def main() -> None:
    faulthandler.enable()
    engine = os.environ["HVDKIT_TEST_ENGINE"]
    library = os.environ.get("HVDKIT_TEST_LIBRARY")
    if library == "torch":
        # as scripts do, so that weights are watched in every test
        importlib.import_module("hvdkit.torch").init(engine)
    world = worlds.init(engine, library)
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["HVDKIT_TEST_SOCKET"])
    connection = Connection(link.detach())
    connection.send(world.rank)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        connection.send(_answer(message))


def _answer(message: bytes) -> tuple[str, object]:
    """Run one body; return its result, or its traceback as text."""
    folder, limit, content = cloudpickle.loads(message)
    faulthandler.dump_traceback_later(limit)
    try:
        if folder not in sys.path:
            sys.path.insert(1, folder)
        body, args, kwargs = cloudpickle.loads(content)
        _begin_anew()
        return "result", _plain(body(*args, **kwargs))
    except BaseException:  # noqa: BLE001 - whatever a body raises is the test's to see
        return "error", traceback.format_exc()
    finally:
        faulthandler.cancel_dump_traceback_later()


def _begin_anew() -> None:
    """Forget what the bodies before have set for the whole process, so that their order does not matter."""
    if "keras" in sys.modules:
        importlib.import_module("keras_runs").fresh()
        # each call of fresh collects, for a quarter of a second if it looks at all that the frameworks hold
        gc.freeze()
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
        sys.modules["torch"].set_default_dtype(sys.modules["torch"].float32)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(0)


def _plain(value: object) -> object:
    """Turn tensors into arrays, since the tests' own process has no framework."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(entry) for entry in value)
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.array(value.numpy()) if hasattr(value, "numpy") else value


if __name__ == "__main__":
    main()
