"""The command ``hvdkit doctor``: what is here, what can train, and what to do about the rest."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from hvdkit.engines.choice import choose_to_start
from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.engines.mpi.spec import find_mpiexec
from hvdkit.errors import HvdkitError
from hvdkit.process.environment import library_of
from hvdkit.tools.horovod_build import machine

_STATES = {True: "yes", False: "no", None: "could not determine"}
_PYTHONS = ((3, 10), (3, 13))
# the newest versions that Horovod's last release was seen to compile against unchanged
_RELEASE_FITS = {"torch": (2, 0), "tf": (2, 15)}
_FRAMEWORKS = ("torch", "tf", "keras")


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``remedy`` is empty where nothing is wrong."""

    what: str
    found: str
    remedy: str = ""


@click.command("doctor")
def doctor() -> None:
    """Show what is installed, which engine can train what, and what to do about problems."""
    console = Console()
    findings = [*environment_findings(), *horovod_findings(), *tool_findings()]
    console.print(_table("Environment", "", "found", findings))
    trainable = engine_findings()
    if trainable:
        console.print(_table("Training", "framework", "engine for several processes", trainable))
        return
    console.print("no framework can train here; install one: pip install 'hvdkit[torch]' (or [tf], [keras])")
    sys.exit(1)


def environment_findings() -> list[Finding]:
    """Report Python and the frameworks, from their metadata."""
    low, high = _PYTHONS
    fits = low <= sys.version_info[:2] <= high
    remedy = "" if fits else f"use Python {low[0]}.{low[1]} to {high[0]}.{high[1]}"
    findings = [Finding("Python", f"{platform.python_version()} ({sys.executable})", remedy)]
    for label, version in (
        ("torch", horovod_info.framework_version("torch")),
        ("TensorFlow", horovod_info.framework_version("tf")),
        ("Keras", _version("keras")),
        ("JAX", _version("jax")),
        ("mpi4py", _version("mpi4py")),
    ):
        findings.append(Finding(label, version or "not installed"))
    return findings


def horovod_findings() -> list[Finding]:
    """Report Horovod: its version, frameworks, controllers, and whether it fits what is installed."""
    version = horovod_info.horovod_version()
    if version is None:
        return [Finding("Horovod", "not installed", _install_hint())]
    findings = [Finding("Horovod", version)]
    for name in ("torch", "tf"):
        if horovod_info.framework_version(name) or horovod_info.built_for(name):
            findings.append(_extension_finding(name))
    remedy = _refusal(horovod_info.check_controllers)
    for label, built in (("MPI", horovod_info.mpi_built()), ("Gloo", horovod_info.gloo_built())):
        findings.append(Finding(f"Horovod with {label}", _STATES[built], remedy if built is False else ""))
    return findings


def tool_findings() -> list[Finding]:
    """Report what a build of Horovod and a launch with MPI would use."""
    compiler, cmake, mpicxx = machine.find_compiler(), machine.find_cmake(), machine.find_mpicxx()
    home = machine.find_cuda_home()
    nccl = machine.find_nccl(home)
    return [
        Finding("C++ compiler", compiler.version, "")
        if compiler
        else Finding("C++ compiler", "none", "needed by hvdkit build-horovod; on Debian: apt install g++"),
        cmake_finding(cmake.version if cmake else None),
        Finding("mpicxx", f"{mpicxx.version} ({mpicxx.path})" if mpicxx else "none"),
        Finding("mpiexec", find_mpiexec() or "none"),
        Finding("CUDA toolkit", f"{machine.cuda_version(home)} ({home})" if home else "none"),
        Finding("NCCL", f"{nccl.version} ({nccl.library})" if nccl else "none"),
    ]


def cmake_finding(version: str | None) -> Finding:
    """Judge CMake's version: 3.13 is the oldest that builds Horovod, and 4 refuses its Gloo as it is."""
    if version is None:
        return Finding("CMake", "none", "needed by hvdkit build-horovod: pip install cmake")
    numbers = machine.cmake_numbers(version)
    if numbers >= (4, 0):
        hint = "refuses Horovod's Gloo unless CMAKE_POLICY_VERSION_MINIMUM=3.5 is set or 'cmake<4' is installed"
        return Finding("CMake", version, f"{hint}; hvdkit build-horovod sets it")
    if numbers < (3, 13):
        return Finding("CMake", version, "older than 3.13: pip install cmake")
    return Finding("CMake", version)


def engine_findings() -> list[Finding]:
    """Report for each framework that can train which engine ``auto`` takes for several processes."""
    findings = []
    for name in _FRAMEWORKS:
        if not _can_train(name):
            continue
        try:
            choice = choose_to_start("auto", 2, library_of(name))
        except HvdkitError as error:
            findings.append(Finding(name, "none: one process only (serial)", str(error)))
            continue
        remedy = _refusal(horovod_info.check_build_matches, library_of(name)) if choice.engine == "horovod" else ""
        findings.append(Finding(name, f"{choice.engine}: {choice.reason}", remedy))
    return findings


def _table(title: str, what: str, found: str, findings: list[Finding]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(what, no_wrap=True)
    table.add_column(found, overflow="fold")
    table.add_column("what to do", overflow="fold")
    for finding in findings:
        table.add_row(finding.what, finding.found, finding.remedy, style="yellow" if finding.remedy else None)
    return table


def _extension_finding(name: str) -> Finding:
    label = "torch" if name == "torch" else "TensorFlow"
    if not horovod_info.built_for(name):
        return Finding(f"Horovod for {label}", "not built", horovod_info.rebuild_command(name))
    built = horovod_info.built_versions().get(name, "unknown version")
    remedy = _refusal(horovod_info.check_build_matches, name)
    return Finding(f"Horovod for {label}", f"built for {built}", remedy)


def _install_hint() -> str:
    if not any(horovod_info.framework_version(name) for name in _RELEASE_FITS):
        return ""
    newer = []
    for name, (major, minor) in _RELEASE_FITS.items():
        version = horovod_info.framework_version(name)
        if version and tuple(int(part) for part in version.split(".")[:2]) > (major, minor):
            newer.append(f"{'torch' if name == 'torch' else 'TensorFlow'} {version}")
    if not newer:
        return "optional: hvdkit build-horovod"
    return (
        f"optional: its last release, 0.28.1, predates {' and '.join(newer)} and does not compile against it "
        "as it is; hvdkit build-horovod edits and builds it"
    )


def _refusal(check: Callable[..., None], *arguments: str) -> str:
    try:
        check(*arguments)
    except HvdkitError as error:
        return str(error)
    return ""


def _can_train(name: str) -> bool:
    if name != "keras":
        return horovod_info.framework_version(name) is not None
    backends = (horovod_info.framework_version("tf"), horovod_info.framework_version("torch"), _version("jax"))
    return _version("keras") is not None and any(backends)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
