"""The host list of ``hvdkit run -H host:slots,…``."""

from __future__ import annotations

import re

from hvdkit.engines.start import Host
from hvdkit.errors import LaunchError


def parse_hosts(text: str, processes: int) -> list[Host]:
    """Read a host list and give its hosts the processes, in order, as many to each as it has slots.

    Args:
        text: ``host:slots,host:slots``; slots are a must, as horovodrun has it.
        processes: The number of processes to place.

    Returns:
        The hosts that get a process, each with the number it gets.

    Raises:
        LaunchError: The list is malformed, names a host twice, or has too few slots.
    """
    hosts = [_parse_host(part, text, processes) for part in text.split(",")]
    names = [host.name for host in hosts]
    for name in names:
        if names.count(name) > 1:
            total = sum(host.slots for host in hosts if host.name == name)
            raise LaunchError(f"-H {text}: host {name!r} stands there twice; write {name}:{total} once")
    slots = sum(host.slots for host in hosts)
    if slots < processes:
        noun = "slot" if slots == 1 else "slots"
        wanted = f"{hosts[0].name}:{processes}" if len(hosts) == 1 else f"{processes} or more in all"
        raise LaunchError(f"-H {text}: {slots} {noun} for {processes} processes; give it {wanted}, or -np {slots}")
    return _place(hosts, processes)


def _parse_host(part: str, text: str, processes: int) -> Host:
    match = re.fullmatch(r"([^\s:]+):([1-9][0-9]*)", part)
    if match:
        return Host(match[1], int(match[2]))
    if re.search(r"\s", part.strip()) or part != part.strip():
        right = ",".join(_with_slots(name, 1) for name in re.split(r"[\s,]+", text.strip()))
        raise LaunchError(f"-H {text!r}: separate hosts by commas, without blanks: -H {right}")
    if re.fullmatch(r"[^\s:]+", part):
        raise LaunchError(f"-H {text}: host {part!r} has no number of slots; write -H {_with_slots(part, processes)}")
    raise LaunchError(f"-H {text}: {part!r} is not host:slots with slots of at least 1; for example -H localhost:2")


def _with_slots(name: str, slots: int) -> str:
    return name if ":" in name else f"{name}:{slots}"


def _place(hosts: list[Host], processes: int) -> list[Host]:
    placed: list[Host] = []
    for host in hosts:
        number = min(host.slots, processes)
        if number:
            placed.append(Host(host.name, number))
        processes -= number
    return placed
