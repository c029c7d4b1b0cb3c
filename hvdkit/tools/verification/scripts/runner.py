"""The process of one run: ``python -m hvdkit.tools.verification.scripts.runner JOB_FILE RUN``."""

from __future__ import annotations

import builtins
import importlib
import io
import os
import random
import sys
from types import ModuleType
from typing import Any

import numpy as np

from hvdkit.errors import HvdkitError
from hvdkit.process.environment import launched_as
from hvdkit.tools.verification.scripts.job import ScriptJob
from hvdkit.tools.verification.scripts.lines import Keeping
from hvdkit.tools.verification.scripts.recording import Enough, Recorder
from hvdkit.tools.verification.scripts.scratch import Scratch
from hvdkit.tools.verification.scripts.verbs import Hooks, Verbs

_SEED = 1234


def main(file: str, run: str) -> None:
    """Run the script as ``__main__``, watched."""
    job, rank = ScriptJob.load(file), launched_as().rank
    recorder = Recorder(job, run, rank)
    scratch = Scratch(job.home, job.place(run, rank) / "folder")
    # what is not seeded differs between ranks, as it would; one process draws what rank 0 does
    random.seed(_SEED + rank)
    np.random.seed(_SEED + rank)
    verbs = importlib.import_module(f"hvdkit.{job.framework}")
    hooks = _hooks(job.framework, recorder, scratch)
    hooks.install()
    Verbs(verbs, recorder, hooks).install()
    scratch.enter()
    sys.stdout = Keeping(sys.stdout, recorder.log.lines)
    sys.stderr = Keeping(sys.stderr, recorder.log.lines)
    try:
        _execute(job.script, job.arguments)
    except Enough:
        pass
    except SystemExit as request:
        if request.code not in (None, 0):
            recorder.log.facts["error"] = f"exit code {request.code}"
            raise
    except BaseException as error:
        said = " ".join(str(error).split())[:300]
        recorder.log.facts["error"] = f"{type(error).__name__}: {said}" if said else type(error).__name__
        if isinstance(error, HvdkitError):
            recorder.log.facts.setdefault("failed", ("", said))
        raise
    finally:
        recorder.log.files = scratch.written()
        recorder.save()


def _hooks(framework: str, recorder: Recorder, scratch: Scratch) -> Hooks:
    home = importlib.import_module(f"hvdkit.tools.verification.scripts.{framework}_hooks")
    made: Hooks = home.make_hooks(recorder, scratch, _SEED + recorder.rank)
    return made


def _execute(script: str, arguments: list[str]) -> None:
    with io.open_code(script) as source:
        code = compile(source.read(), script, "exec")
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(script)
    module = ModuleType("__main__")
    module.__file__ = script
    names: dict[str, Any] = module.__dict__
    names["__builtins__"] = builtins
    sys.modules["__main__"] = module
    exec(code, names)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
