"""The Horovod that ``hvdkit build-horovod`` installed in this environment, where there is one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from limits import HANG_SECONDS

from hvdkit.engines.horovod import installed as horovod_info
from hvdkit.errors import BuildError
from hvdkit.tools.horovod_build import proof
from hvdkit.tools.horovod_build.machine import scripts_folder

RECORD = horovod_info.build_record()
FRAMEWORKS = tuple(RECORD.get("frameworks", ()))
pytestmark = [
    pytest.mark.processes,
    pytest.mark.horovod,
    pytest.mark.skipif(not RECORD, reason="no Horovod that hvdkit build-horovod built"),
]


def test_the_record_agrees_with_what_is_there() -> None:
    for framework in FRAMEWORKS:
        assert horovod_info.built_for(framework)
        horovod_info.check_build_matches(framework)
    assert horovod_info.mpi_built() is (RECORD["mpi"] is not None)
    assert horovod_info.gloo_built() is True


def test_what_is_read_from_the_file_agrees_with_what_horovod_says_itself() -> None:
    command = [str(scripts_folder() / "horovodrun"), "--check-build"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=True).stdout
    # Horovod calls torch available wherever its Python part imports, so a framework's absence cannot be compared
    for framework in FRAMEWORKS:
        assert f"[X] {'PyTorch' if framework == 'torch' else 'TensorFlow'}" in said
    for label, built in (("MPI", horovod_info.mpi_built()), ("Gloo", horovod_info.gloo_built())):
        assert f"[{'X' if built else ' '}] {label}" in said


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_processes_sum_with_gloo(framework: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        proof.prove(framework, "gloo", log)


@pytest.mark.skipif(not RECORD.get("mpi"), reason="built without MPI")
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_processes_sum_with_mpi(framework: str, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        proof.prove(framework, "mpi", log)


def test_a_proof_that_fails_ends_in_one_line(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, pytest.raises(BuildError, match="allreduce by 2 processes") as refusal:
        proof.prove("no-such-framework", "gloo", log)
    assert "\n" not in str(refusal.value)
