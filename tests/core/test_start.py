"""What is to be started, and where."""

from __future__ import annotations

import socket

import pytest

from hvdkit.engines.start import Host, Start
from hvdkit.errors import LaunchError


def start(*hosts, processes=3):
    return Start(processes, hosts, "mpi", ("train.py", "--name", "a b"), ("python", "-m", "child"))


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", socket.gethostname()])
def test_this_host_is_known_by_its_names_and_addresses(name):
    assert Host(name, 2).is_here


# 192.0.2.0/24 belongs to no host (RFC 5737), and .invalid to no name (RFC 2606)
@pytest.mark.parametrize("name", ["192.0.2.1", "node7.invalid"])
def test_other_hosts_are_not_here(name):
    assert not Host(name, 2).is_here


def test_processes_of_this_host_are_counted():
    here, there = Host("localhost", 2), Host("192.0.2.1", 4)
    assert (start(here).is_local, start(here).processes_here) == (True, 2)
    assert (start(here, there).is_local, start(here, there).processes_here) == (False, 2)
    assert start(there).processes_here == 4


def test_a_rank_is_the_supervisor_with_the_program():
    assert start(Host("localhost", 3)).rank_command == ["python", "-m", "child", "train.py", "--name", "a b"]


def test_other_hosts_are_refused_with_the_commands_to_run_there():
    start(Host("localhost", 3)).refuse_other_hosts("run by hand", [])
    with pytest.raises(LaunchError) as refused:
        start(Host("localhost", 1), Host("192.0.2.1", 2)).refuse_other_hosts("run by hand", ["mpirun -np 3"])
    assert str(refused.value) == (
        "engine mpi starts processes on this host only, not on 192.0.2.1; run by hand:\n"
        "  mpirun -np 3 train.py --name 'a b'"
    )
