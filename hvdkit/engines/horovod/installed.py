"""What can be known of the installed Horovod and of the frameworks without importing any of them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import sysconfig
from pathlib import Path
from typing import Any

from hvdkit.engines.horovod.controllers import controller_built
from hvdkit.errors import EngineError

RECORD_NAME = "hvdkit_build.json"
TF_DISTRIBUTIONS = (
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
)
_LABELS = {"torch": "torch", "tf": "TensorFlow"}
_EXTENSIONS = {"torch": "torch/mpi_lib_v2", "tf": "tensorflow/mpi_lib"}
# the keys under which Horovod's own build notes the versions it saw
_METADATA_KEYS = {"torch": "pytorch", "tf": "tensorflow"}


def horovod_name(framework: str) -> str:
    """Return the name under which Horovod is built for a framework: Keras uses TensorFlow's extension.

    Raises:
        EngineError: Horovod knows no such framework.
    """
    name = "tf" if framework == "keras" else framework
    if name not in _EXTENSIONS:
        raise EngineError(f"horovod knows no framework {framework!r}; choose torch, tf or keras")
    return name


def package_folder(package: str) -> Path | None:
    """Return the folder of a top-level package without importing it, or None if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def horovod_version() -> str | None:
    """Return the version of the installed Horovod, or None."""
    return _distribution_version("horovod")


def framework_distribution(framework: str) -> str | None:
    """Return the name of the installed distribution that provides a framework, or None."""
    names = TF_DISTRIBUTIONS if horovod_name(framework) == "tf" else ("torch",)
    return next((name for name in names if _distribution_version(name)), None)


def framework_version(framework: str) -> str | None:
    """Return the installed version of a framework with its local part (``2.14.1+cu130``), or None.

    A wheel's metadata may lack torch's local part, which tells the CUDA version; ``torch/version.py`` has it.
    """
    name = horovod_name(framework)
    distribution = framework_distribution(name)
    if distribution is None:
        return None
    folder = package_folder("torch") if name == "torch" else None
    if folder is not None and (folder / "version.py").is_file():
        found = re.search(r"^__version__\s*=\s*'([^']+)'", (folder / "version.py").read_text(), re.MULTILINE)
        if found:
            return found.group(1)
    return _distribution_version(distribution)


def torch_cuda_version() -> str | None:
    """Return the CUDA version that the installed torch was built with, or None for a CPU build or no torch."""
    folder = package_folder("torch")
    if folder is None or not (folder / "version.py").is_file():
        return None
    found = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", (folder / "version.py").read_text(), re.MULTILINE)
    return found.group(1) if found else None


def build_record() -> dict[str, Any]:
    """Return what ``hvdkit build-horovod`` noted inside the installed Horovod; empty if another tool built it."""
    return _read_json(RECORD_NAME)


def built_versions() -> dict[str, str]:
    """Return the framework versions that the installed Horovod was compiled against, by hvdkit's names."""
    recorded = build_record().get("frameworks")
    if isinstance(recorded, dict):
        return {str(name): str(version) for name, version in recorded.items()}
    metadata = _read_json("metadata.json")
    return {name: str(metadata[key]) for name, key in _METADATA_KEYS.items() if key in metadata}


def built_for(framework: str) -> bool:
    """Say whether the installed Horovod has this framework's compiled extension; imports nothing."""
    return _extension(framework) is not None


def check_build_matches(framework: str) -> None:
    """Check that the framework is still the version that the installed Horovod was compiled against.

    A Horovod that notes no version is taken as it is.

    Raises:
        EngineError: The framework was upgraded, downgraded or removed after Horovod was built.
    """
    name = horovod_name(framework)
    built = built_versions().get(name)
    installed = framework_version(name)
    if built is None or built == installed:
        return
    label = _LABELS[name]
    if installed is None:
        raise EngineError(f"horovod was built for {label} {built}, but {label} is not installed; install it")
    raise EngineError(
        f"horovod was built for {label} {built}, but {label} {installed} is installed; "
        f"rebuild it with: {rebuild_command(name)}"
    )


def rebuild_command(framework: str | None) -> str:
    """Return the command that builds Horovod for a framework, if known, and for those that it has already."""
    names = sorted({*built_versions(), *([horovod_name(framework)] if framework is not None else [])})
    return "hvdkit build-horovod" + "".join(f" --framework {name}" for name in names if framework_version(name))


def check_controllers() -> None:
    """Check that the installed Horovod can connect its processes; unknown counts as possible.

    Raises:
        EngineError: It has neither of the controllers MPI and Gloo.
    """
    if mpi_built() is False and gloo_built() is False:
        raise EngineError(
            "horovod was built with neither Gloo nor MPI, so its processes cannot find each other; "
            "rebuild it with: hvdkit build-horovod"
        )


def mpi_built() -> bool | None:
    """Say whether the installed Horovod has the MPI controller; None: could not be determined."""
    return _controller_built("mpi")


def gloo_built() -> bool | None:
    """Say whether the installed Horovod has the Gloo controller; None: could not be determined."""
    return _controller_built("gloo")


def _controller_built(controller: str) -> bool | None:
    folder = package_folder("horovod")
    return controller_built(folder, controller) if folder is not None else None


def _extension(framework: str) -> Path | None:
    folder = package_folder("horovod")
    if folder is None:
        return None
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    path = folder / f"{_EXTENSIONS[horovod_name(framework)]}{suffix}"
    return path if path.is_file() else None


def _distribution_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_json(name: str) -> dict[str, Any]:
    folder = package_folder("horovod")
    try:
        content = json.loads((folder / name).read_text()) if folder is not None else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
