from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.tools import doctor as doctor_module
from hvdkit.tools.doctor import cmake_finding, doctor, horovod_findings

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch": "2.14.1+cu130", "tf": "2.21.0"}


def test_every_python_of_the_package_is_taken_for_a_right_one() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    classifiers = metadata["metadata"]["classifiers"].split("\n")
    named = [
        line.rpartition(":: ")[2] for line in classifiers if line.startswith("Programming Language :: Python :: 3.")
    ]
    low, high = doctor_module._PYTHONS
    assert [f"3.{minor}" for minor in range(low[1], high[1] + 1)] == named


def found(what: str) -> doctor_module.Finding:
    return next(finding for finding in horovod_findings() if finding.what == what)


@pytest.mark.parametrize("version", ["4.0.3", "4.4.0-rc1"])
def test_a04_cmake_4_is_flagged_with_the_setting(version: str) -> None:
    finding = cmake_finding(version)
    assert "CMAKE_POLICY_VERSION_MINIMUM=3.5" in finding.remedy
    assert "cmake<4" in finding.remedy


@pytest.mark.parametrize("version", ["3.13.0", "3.25.1", "3.31.6"])
def test_a04_cmake_3_is_not_flagged(version: str) -> None:
    assert cmake_finding(version).remedy == ""


def test_a04_no_cmake_or_an_old_one_is_flagged() -> None:
    assert "pip install cmake" in cmake_finding(None).remedy
    assert "older than 3.13" in cmake_finding("3.10.2").remedy


def test_a04_the_report_asks_the_cmake_that_the_build_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "cmake"
    program.write_text("#!/bin/sh\necho 'cmake version 4.1.2'\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOROVOD_CMAKE", str(program))
    output = CliRunner(env={"COLUMNS": "200"}).invoke(doctor).output
    assert "4.1.2" in output
    assert "CMAKE_POLICY_VERSION_MINIMUM=3.5" in output


@pytest.mark.parametrize(("built", "shown"), [(True, "yes"), (False, "no"), (None, "could not determine")])
def test_a06_a_controller_has_three_states(monkeypatch: pytest.MonkeyPatch, built: bool | None, shown: str) -> None:
    monkeypatch.setattr(horovod_info, "horovod_version", lambda: "0.28.1")
    monkeypatch.setattr(horovod_info, "mpi_built", lambda: built)
    monkeypatch.setattr(horovod_info, "gloo_built", lambda: True)
    assert found("Horovod with MPI").found == shown
    assert found("Horovod with Gloo").found == "yes"
    assert found("Horovod with MPI").remedy == ""


def test_a06_no_controller_at_all_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "horovod_version", lambda: "0.28.1")
    monkeypatch.setattr(horovod_info, "mpi_built", lambda: False)
    monkeypatch.setattr(horovod_info, "gloo_built", lambda: False)
    assert "hvdkit build-horovod" in found("Horovod with Gloo").remedy


def test_a01_frameworks_newer_than_horovods_release_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "horovod_version", lambda: None)
    monkeypatch.setattr(horovod_info, "framework_version", FRAMEWORKS.get)
    finding = found("Horovod")
    assert finding.found == "not installed"
    assert "0.28.1, predates torch 2.14.1+cu130 and TensorFlow 2.21.0" in finding.remedy
    assert "hvdkit build-horovod" in finding.remedy


def test_a01_a_framework_that_the_release_fits_is_not_called_too_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "horovod_version", lambda: None)
    monkeypatch.setattr(horovod_info, "framework_version", {"tf": "2.15.1"}.get)
    assert found("Horovod").remedy == "optional: hvdkit build-horovod"


def test_a02_an_extension_that_was_not_built_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "horovod_version", lambda: "0.28.1")
    monkeypatch.setattr(horovod_info, "framework_version", FRAMEWORKS.get)
    monkeypatch.setattr(horovod_info, "built_versions", lambda: {"torch": "2.14.1+cu130"})
    monkeypatch.setattr(horovod_info, "built_for", lambda name: name == "torch")
    assert found("Horovod for torch").remedy == ""
    missing = found("Horovod for TensorFlow")
    assert missing.found == "not built"
    assert missing.remedy == "hvdkit build-horovod --framework tf --framework torch"


def test_an_upgraded_framework_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "horovod_version", lambda: "0.28.1")
    monkeypatch.setattr(horovod_info, "framework_version", FRAMEWORKS.get)
    monkeypatch.setattr(horovod_info, "built_versions", lambda: {"torch": "2.13.0"})
    monkeypatch.setattr(horovod_info, "built_for", lambda name: name == "torch")
    assert "torch 2.14.1+cu130 is installed; rebuild it" in found("Horovod for torch").remedy


def test_without_a_framework_the_exit_code_is_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "framework_version", lambda name: None)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(doctor)
    assert result.exit_code == 1
    assert "no framework can train here" in result.output


def test_with_a_framework_the_exit_code_is_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_info, "framework_version", FRAMEWORKS.get)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(doctor)
    assert result.exit_code == 0, result.output
    assert "engine for several processes" in result.output
