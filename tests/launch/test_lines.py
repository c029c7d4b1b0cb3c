"""A rank's bytes become whole lines, of which progress bars leave their last state."""

from __future__ import annotations

import pytest

from hvdkit.tools.launch.lines import LabelledOutput, LineSplitter


@pytest.mark.parametrize(
    ("pieces", "lines", "updates"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"], []),
        ([b"o", b"ne\ntw", b"o\n"], [b"one", b"two"], []),
        ([b"no end"], [b"no end"], []),
        ([b"\n\n"], [b"", b""], []),
        ([b"\r10%", b"\r20%", b"\r30%\n"], [b"30%"], [b"10%", b"20%"]),
        ([b"10%\r", b"20%\r", b"\n"], [b"20%"], [b"10%", b"20%"]),
        ([b"windows\r\n"], [b"windows"], []),
    ],
)
def test_lines_and_states_come_out_whole(pieces, lines, updates):
    seen, states = [], []
    splitter = LineSplitter(seen.append, states.append)
    for piece in pieces:
        splitter.feed(piece)
    splitter.close()
    assert (seen, states) == (lines, updates)


@pytest.mark.parametrize("terminal", [False, True])
def test_every_line_has_its_label(tmp_path, terminal):
    with (tmp_path / "out").open("w+b") as file:
        output = LabelledOutput(file.fileno(), b"[3] ", terminal)
        output.line(b"one")
        output.line(b"x" * 100_000)
    clear = b"\r\x1b[K" if terminal else b""
    assert (tmp_path / "out").read_bytes() == clear + b"[3] one\n" + clear + b"[3] " + b"x" * 100_000 + b"\n"
