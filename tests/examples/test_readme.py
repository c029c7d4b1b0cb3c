"""The commands of README and CONTRIBUTING: each names programs, options, extras, markers and files that exist."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import PurePath

import click
import pytest
from example_runs import ROOT, succeed

from hvdkit.tools.cli import hvdkit

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```(?:console|bash|sh)\n(.*?)^```", README + CONTRIBUTING, re.MULTILINE | re.DOTALL)
COMMANDS = [
    shlex.split(part) for block in BLOCKS for line in block.splitlines() for part in line.split("&&") if part.strip()
]


def check_python(words):
    assert words[1:3] == ["-m", "venv"] or (ROOT / words[1]).is_file()
    if words[1].endswith(".py"):
        check_script(words[1:])


def check_pip(words):
    assert words[1] == "install"
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for word in words[3:] if words[2] == "-e" else words[2:]:
        found = re.fullmatch(r"\.\[(.*)\]|tox", word)
        assert found, word
        assert set((found.group(1) or "dev").split(",")) <= set(setup["options.extras_require"])


def check_tox(words):
    text = (ROOT / "tox.ini").read_text()
    environments = words[words.index("-e") + 1].split(",") if "-e" in words else []
    assert all(name in text for name in environments)


def check_pytest(words):
    markers = (ROOT / "pyproject.toml").read_text()
    names = set(re.findall(r"\w+", words[words.index("-m") + 1])) - {"not", "and", "or"}
    assert all(f'"{name}: ' in markers for name in names)


def check_hvdkit(words):
    command = hvdkit.get_command(click.Context(hvdkit), words[1])
    assert command is not None, words[1]
    with click.Context(command) as context:
        command.parse_args(context, list(words[2:]))
    program = context.params.get("program")
    if program:
        check_script(program)


def check_script(words):
    """Check that a script exists and lists each option that it is given."""
    assert (ROOT / words[0]).is_file(), words[0]
    shown = succeed("python", words[0], "--help").stdout
    for word in words[1:]:
        if word.startswith("--"):
            assert re.search(rf"{re.escape(word)}\b", shown), word


CHECKS = {
    "python": check_python,
    "python3": check_python,
    "pip": check_pip,
    "pytest": check_pytest,
    "tox": check_tox,
    "hvdkit": check_hvdkit,
}


def test_there_are_commands():
    programs = [PurePath(words[0]).name for words in COMMANDS]
    assert {"pip", "tox", "hvdkit"} <= set(programs)


@pytest.mark.processes
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_is_accepted(words):
    CHECKS[PurePath(words[0]).name](words)


def test_commands_named_in_the_text_exist():
    names = re.findall(r"`hvdkit ([a-z-]+)", README)
    assert names
    assert set(names) <= set(hvdkit.list_commands(click.Context(hvdkit)))


def test_environments_named_in_the_table_exist():
    tox = (ROOT / "tox.ini").read_text()
    names = re.findall(r"`tox -e ([\w-]+)`", CONTRIBUTING)
    assert "nightly" in names
    assert [name for name in names if f"[testenv:{name}]" not in tox] == []


def test_files_named_in_the_text_exist():
    files = {*re.findall(r"\]\(([\w./-]+)\)", README), *re.findall(r"`(examples/[\w./-]+)", README)}
    assert "examples/mnist.py" in files
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
