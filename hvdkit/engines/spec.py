"""What hvdkit knows of an engine before it is started: one ``Spec`` in the engine's folder."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hvdkit.engines.start import Start
from hvdkit.process.environment import LaunchedAs

if TYPE_CHECKING:
    from hvdkit.engines.base import Engine
    from hvdkit.engines.channel import Channel


def _no_variables(_folder: str) -> dict[str, str]:
    return {}


@dataclass(frozen=True)
class Spec:
    """An engine's place in the tables; nothing of it imports a framework, NumPy or the engine's own package.

    Attributes:
        name: As users write it in ``Init(engine=…)`` and ``hvdkit run --engine``.
        channels: For each tensor library that the engine carries, ``module:class`` of its channel.
        launchers: Under which the engine runs, ``plain`` for none.
        started_by: The program by which ``hvdkit run`` starts its ranks.
        module: ``module:function`` that takes the library and what the launcher's environment says, and starts it.
        obstacle: Says why the engine cannot serve a library here under a launcher, with what to do; empty if it can.
            None stands for a program without a library, and for the launcher that ``hvdkit run`` itself takes.
        presence: Says, for a library, what of it is installed: the reason why ``auto`` takes it.
        command: Makes the command line that starts the ranks of a job.
        controllers: What ``hvdkit run --controller`` may choose between.
        variables: Environment variables of the launcher, for the folder in which it may keep files.
    """

    name: str
    channels: Mapping[str, str]
    launchers: tuple[str, ...]
    started_by: str
    module: str
    obstacle: Callable[[str | None, str | None], str]
    presence: Callable[[str | None], str]
    command: Callable[[Start], list[str]]
    controllers: tuple[str, ...] = ()
    variables: Callable[[str], dict[str, str]] = field(default=_no_variables)

    @property
    def is_alone(self) -> bool:
        """Whether the engine is for one process only."""
        return self.launchers == ("plain",)

    def start(self, library: str | None, launched: LaunchedAs) -> Engine:
        """Start the engine in this process.

        Raises:
            EngineError: It cannot start.
        """
        engine: Engine = _named(self.module)(library, launched)
        return engine

    def open_channel(self, engine: Engine, library: str) -> Channel:
        """Return the engine's channel for the tensors of a library that it carries."""
        channel: Channel = _named(self.channels[library])(engine)
        return channel


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
