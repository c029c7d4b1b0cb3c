"""Each edit changes the real archive as meant, and refuses a source that it does not know."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from hvdkit.errors import BuildError
from hvdkit.tools.horovod_build import edits
from hvdkit.tools.horovod_build.edits import edits_for


def read(tree: Path, name: str) -> str:
    return (tree / name).read_text()


def test_the_tree_gets_its_standard(tree: Path) -> None:
    edits.set_tree_standard(tree)
    text = read(tree, "CMakeLists.txt")
    assert "set(CMAKE_CXX_STANDARD 17)" in text
    assert "CMAKE_CXX_STANDARD 14" not in text


@pytest.mark.parametrize(
    ("version", "standard"), [("2.1.0", 17), ("2.13.0+cpu", 17), ("2.14.1+cu130", 20), ("3.0.0", 20)]
)
def test_torch_gets_the_standard_of_its_version(tree: Path, version: str, standard: int) -> None:
    for edit in edits_for({"torch": version}, gpu=False, library_folders=()):
        edit.change(tree)
    text = read(tree, "horovod/torch/CMakeLists.txt")
    assert f"set(CMAKE_CXX_STANDARD {standard})" in text
    assert "CMAKE_CXX_STANDARD 14" not in text


def test_a_build_for_the_cpu_does_not_probe_for_cuda(tree: Path) -> None:
    edits.skip_torch_cuda_probe(tree)
    text = read(tree, "cmake/Modules/FindPytorch.cmake")
    assert 'import CUDA_HOME; print(False)"' in text
    assert "torch.version.cuda is not None" not in text


def test_a_build_for_gpus_keeps_the_probe_and_sets_cudas_standard(tree: Path) -> None:
    for edit in edits_for({"torch": "2.14.1"}, gpu=True, library_folders=()):
        edit.change(tree)
    assert "torch.version.cuda is not None" in read(tree, "cmake/Modules/FindPytorch.cmake")
    assert "set(CMAKE_CUDA_STANDARD 17)" in read(tree, "horovod/common/ops/cuda/CMakeLists.txt")


@pytest.mark.parametrize(("version", "kept"), [("2.15.1", True), ("2.16.0", False), ("2.21.0", False)])
def test_xla_operations_are_kept_where_tensorflow_has_the_headers(tree: Path, version: str, kept: bool) -> None:
    for edit in edits_for({"tf": version}, gpu=False, library_folders=()):
        edit.change(tree)
    text = read(tree, "horovod/tensorflow/CMakeLists.txt")
    assert ("xla_mpi_ops.cc" in text) is kept
    assert "tensorflow/mpi_ops.cc" in text


def test_shared_libraries_are_found_relative_to_the_wheel(tree: Path) -> None:
    edits.add_relative_rpath(tree, ("../../../..", "../../nvidia/nccl/lib"))
    line = 'set(CMAKE_BUILD_RPATH "$ORIGIN/../../../.." "$ORIGIN/../../nvidia/nccl/lib")\n'
    assert line in read(tree, "CMakeLists.txt")


def test_horovodrun_passes_options_that_every_open_mpi_takes(tree: Path) -> None:
    edits.write_long_options(tree)
    module = ast.parse(read(tree, "horovod/runner/mpi_run.py"))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and "ARGS" in node.targets[0].id
    }
    assert values["_NO_BINDING_ARGS"] == ["--bind-to none", "--map-by slot"]


def test_horovodrun_reads_which_controllers_there_are_without_an_import(tree: Path) -> None:
    edits.read_controllers(tree)
    launcher = ast.parse(read(tree, "horovod/runner/launch.py"))
    for name in ("run_controller", "is_gloo_used"):
        (function,) = (node for node in launcher.body if isinstance(node, ast.FunctionDef) and node.name == name)
        imported = next(node for node in function.body if isinstance(node, ast.ImportFrom))
        assert imported.module == "horovod.common.controllers"
        assert {alias.name for alias in imported.names} == {"gloo_built", "mpi_built"}
    (tree / "horovod/torch/mpi_lib_v2.cpython-311.so").write_bytes(b"..N4gloo..")
    spec = importlib.util.spec_from_file_location("controllers", tree / "horovod/common/controllers.py")
    controllers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(controllers)
    assert controllers.gloo_built(verbose=True) is True
    assert controllers.mpi_built() is False


def test_the_record_becomes_part_of_the_wheel(tree: Path) -> None:
    edits.ship_record(tree)
    calls = [node for node in ast.walk(ast.parse(read(tree, "setup.py"))) if isinstance(node, ast.Call)]
    setup = next(call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "setup")
    values = {word.arg: word.value for word in setup.keywords}
    assert ast.literal_eval(values["package_data"]) == {"horovod": ["hvdkit_build.json"]}
    assert "zip_safe" in values


@pytest.mark.parametrize(
    "edit",
    [
        edits.set_tree_standard,
        lambda tree: edits.set_torch_standard(tree, 20),
        edits.set_cuda_standard,
        edits.skip_torch_cuda_probe,
        edits.drop_tensorflow_xla,
        edits.write_long_options,
        edits.read_controllers,
    ],
)
def test_a_source_that_is_changed_already_is_refused(tree: Path, edit: Callable[[Path], None]) -> None:
    edit(tree)
    with pytest.raises(BuildError, match="not the one that hvdkit knows") as refusal:
        edit(tree)
    assert "\n" not in str(refusal.value)


def test_every_edit_refuses_an_empty_folder(tmp_path: Path) -> None:
    frameworks = {"torch": "2.14.1", "tf": "2.21.0"}
    for gpu in (False, True):
        for edit in edits_for(frameworks, gpu=gpu, library_folders=("../../../..",)):
            with pytest.raises(BuildError, match="0 times instead of once"):
                edit.change(tmp_path)


def test_a_version_that_is_no_version_is_refused() -> None:
    with pytest.raises(BuildError, match="cannot read the version 'main'"):
        edits.version_numbers("main")
