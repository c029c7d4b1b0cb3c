"""The process of a rank: runs the user's script as ``__main__`` and records how it failed.

``python -m hvdkit.tools.launch.script PARENT script.py args…`` or ``… PARENT -m module args…``
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType, TracebackType

from hvdkit.errors import LaunchError, RankFailedError
from hvdkit.process import failures, time_limit
from hvdkit.tools.launch.processes import end_with_parent


def main(parent: int, arguments: list[str]) -> None:
    """Run a script or module as plain Python would.

    Args:
        parent: The supervising process; this one ends with it.
        arguments: The script and its arguments, or ``-m``, a module and its arguments.
    """
    end_with_parent(signal.SIGKILL, parent)
    time_limit.take_signal()
    for stream in (sys.stdout, sys.stderr):
        # lines appear when they are written, as on a terminal
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    failures.watch_exceptions()
    try:
        _execute(*(_find_module(arguments[1:]) if arguments[0] == "-m" else _find_script(arguments)))
    except SystemExit as request:
        _record_exit(request)
        raise
    except KeyboardInterrupt:
        failures.record("interrupted", 130, secondary=True)
        raise SystemExit(130) from None
    except BaseException as error:  # noqa: BLE001 - recorded, then shown by the hook
        failures.give_way()
        # whatever hook the script has put in place, the failure is recorded first
        trace = _script_frames(error.__traceback__)
        secondary = isinstance(error, RankFailedError)
        failures.record(failures.describe(error), 1, secondary=secondary, error=error.with_traceback(trace))
        sys.excepthook(type(error), error, trace)
        raise SystemExit(1) from None


def _find_script(arguments: list[str]) -> tuple[CodeType, ModuleType, list[str]]:
    path = os.path.abspath(arguments[0])
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec")
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    module = ModuleType("__main__")
    module.__file__ = path
    return code, module, arguments


def _find_module(arguments: list[str]) -> tuple[CodeType, ModuleType, list[str]]:
    spec = _main_spec(arguments[0])
    get_code = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise LaunchError(f"module {arguments[0]!r} cannot be run: it has no Python code")
    module = ModuleType("__main__")
    module.__spec__, module.__loader__, module.__package__ = spec, spec.loader, spec.parent
    module.__file__ = spec.origin
    return code, module, [spec.origin or arguments[0], *arguments[1:]]


def _main_spec(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise LaunchError(f"no module named {error.name!r}; -m takes a module that Python can import") from None
    if spec is None:
        raise LaunchError(f"no module named {name!r} that can be run; -m takes a module that Python can import")
    return spec


def _execute(code: CodeType, module: ModuleType, arguments: list[str]) -> None:
    sys.argv[:] = arguments
    module.__dict__["__builtins__"] = builtins
    # kept after the script ends: threads and exit functions may still look names up in it
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _record_exit(request: SystemExit) -> None:
    if request.code in (None, 0):
        return
    code = request.code if isinstance(request.code, int) else 1
    message = f"exit code {code}" if isinstance(request.code, int) else " ".join(str(request.code).split())
    failures.record(message, code & 0xFF, secondary=False, error=request)


def _script_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this module."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
