"""The changes that Horovod's released source needs before today's frameworks accept it, one function each.

Every edit looks for the text that it replaces; if the archive does not hold it, the build stops there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hvdkit.engines.horovod import controllers as horovod_controllers
from hvdkit.engines.horovod.installed import RECORD_NAME
from hvdkit.errors import BuildError

TREE_STANDARD = 17  # what TensorFlow 2.10 and later and torch 2.1 and later ask for
CONTROLLERS = Path(horovod_controllers.__file__)
_XLA_REMOVED_IN = (2, 16)


@dataclass(frozen=True)
class Edit:
    """One change of the source tree and the reason for it."""

    reason: str
    change: Callable[[Path], None]


def torch_standard(torch_version: str) -> int:
    """Return the C++ standard that the headers of a torch version ask for."""
    return 20 if version_numbers(torch_version) >= (2, 14) else 17


def version_numbers(version: str) -> tuple[int, int]:
    """Return major and minor of a version such as ``2.14.1+cu130``.

    Raises:
        BuildError: The version does not start with two numbers.
    """
    parts = version.split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        raise BuildError(f"cannot read the version {version!r}: expected MAJOR.MINOR") from None


def edits_for(frameworks: dict[str, str], *, gpu: bool, library_folders: tuple[str, ...]) -> list[Edit]:
    """Return the edits for these frameworks.

    Args:
        frameworks: The versions to build for, by name (``torch``, ``tf``).
        gpu: Whether the build uses CUDA and NCCL.
        library_folders: Where the wheel looks for shared libraries of its environment, relative to an extension.
    """
    edits = [
        Edit(f"the frameworks' headers are C++{TREE_STANDARD}", set_tree_standard),
        Edit("Open MPI 5 takes horovodrun's options with two dashes only", write_long_options),
        Edit("horovodrun reads what was built in place of importing the frameworks", read_controllers),
        Edit("the wheel tells later what it was built for", ship_record),
    ]
    if library_folders:
        reason = "a wheel from the cache must find its libraries in another environment"
        edits.append(Edit(reason, lambda tree: add_relative_rpath(tree, library_folders)))
    if "torch" in frameworks:
        standard = torch_standard(frameworks["torch"])
        edits.append(Edit(f"torch's headers are C++{standard}", lambda tree: set_torch_standard(tree, standard)))
        if not gpu:
            edits.append(Edit("a build for the CPU must not look for a CUDA toolkit", skip_torch_cuda_probe))
    if "tf" in frameworks and version_numbers(frameworks["tf"]) >= _XLA_REMOVED_IN:
        edits.append(Edit("TensorFlow ships no XLA headers that fit", drop_tensorflow_xla))
    if gpu:
        edits.append(Edit("current CUDA headers are C++17", set_cuda_standard))
    return edits


def set_tree_standard(tree: Path) -> None:
    """Compile the whole tree with the C++ standard of the frameworks' headers."""
    _replace(
        tree / "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        f"set(CMAKE_CXX_STANDARD {TREE_STANDARD})",
    )


def set_torch_standard(tree: Path, standard: int) -> None:
    """Compile torch's extension with the C++ standard of its headers."""
    _replace(
        tree / "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        f"set(CMAKE_CXX_STANDARD {standard})",
    )


def set_cuda_standard(tree: Path) -> None:
    """Compile the CUDA kernels with the C++ standard of the toolkit's headers."""
    _replace(
        tree / "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        f"set(CMAKE_CUDA_STANDARD {TREE_STANDARD})",
    )


def skip_torch_cuda_probe(tree: Path) -> None:
    """Let the probe for torch's CUDA answer no: an ``nvcc`` without headers would send it wrong."""
    _replace(
        tree / "cmake/Modules/FindPytorch.cmake",
        "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)",
        "print(False)",
    )


def drop_tensorflow_xla(tree: Path) -> None:
    """Leave out the XLA operations, which include headers that the TensorFlow package lacks."""
    _replace(
        tree / "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
    )


def write_long_options(tree: Path) -> None:
    """Let ``horovodrun`` pass its binding options with two dashes, which Open MPI 4 takes as well."""
    _replace(
        tree / "horovod/runner/mpi_run.py",
        "_NO_BINDING_ARGS = ['-bind-to none', '-map-by slot']",
        "_NO_BINDING_ARGS = ['--bind-to none', '--map-by slot']",
    )


def read_controllers(tree: Path) -> None:
    """Let ``horovodrun`` read from the extensions' files which controllers they have.

    Asking the extensions themselves costs the import of TensorFlow, seconds at each start, and fails where that fails.
    """
    launcher = tree / "horovod/runner/launch.py"
    asking = "    from horovod.common.controllers import gloo_built, mpi_built\n"
    for first_line in (
        "    # keep logic in sync with is_gloo_used(...)\n",
        "    # determines whether run_controller will run gloo\n",
    ):
        _replace(launcher, first_line, asking)
    (tree / "horovod/common/controllers.py").write_text(CONTROLLERS.read_text())


def add_relative_rpath(tree: Path, folders: tuple[str, ...]) -> None:
    """Search these folders for shared libraries, relative to the extension, before those of the build."""
    anchor = "set(CMAKE_CXX_EXTENSIONS OFF)\n"
    paths = " ".join(f'"$ORIGIN/{folder}"' for folder in folders)
    _replace(tree / "CMakeLists.txt", anchor, f"{anchor}set(CMAKE_BUILD_RPATH {paths})\n")


def ship_record(tree: Path) -> None:
    """Make the record of this build part of the wheel."""
    anchor = "      zip_safe=False,\n"
    line = f"      package_data={{'horovod': ['{RECORD_NAME}']}},\n"
    _replace(tree / "setup.py", anchor, line + anchor)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text() if path.is_file() else ""
    if text.count(old) != 1:
        raise BuildError(
            f"horovod's source is not the one that hvdkit knows: {path.name} holds {old.strip()!r} "
            f"{text.count(old)} times instead of once; remove the cached archive and try again"
        )
    path.write_text(text.replace(old, new))
