"""Parts of the verification of scripts that need no process: what a script shows, and the folder that it runs in."""

from __future__ import annotations

import numpy as np
import pytest

from hvdkit.recipe.plan import MicroBatch
from hvdkit.tools.verification.scripts.lines import numbers, template
from hvdkit.tools.verification.scripts.loops import shortened
from hvdkit.tools.verification.scripts.scratch import Scratch


@pytest.mark.parametrize(
    ("line", "form", "found"),
    [
        ("epoch 1: loss 0.25", "epoch #: loss #", [1, 0.25]),
        ("acc=93.1% lr 1e-3", "acc=#% lr #", [93.1, 1e-3]),
        ("step 3/20 loss=-2.", "step #/# loss=#", [3, 20, -2]),
        ("conv2d_1 nan", "conv2d_1 #", [float("nan")]),
    ],
)
def test_numbers_of_a_line(line, form, found):
    assert template(line) == form
    np.testing.assert_equal([value for value, _ in numbers(line)], found)


def test_half_a_unit_of_the_last_place():
    assert [half for _, half in numbers("7 0.25 1.5e-3")] == pytest.approx([0, 0.005, 0.00005])


@pytest.mark.parametrize(
    ("updates", "places"), [(1, [0, 1]), (2, [0, 1, 6]), (3, [0, 1, 2, 3, 6]), (4, [0, 1, 2, 3, 4, 5, 6])]
)
def test_an_epoch_is_cut_to_its_first_updates_and_its_last(updates, places):
    # two passes an update, the last one short
    parts = [MicroBatch(np.array([place]), 1.0, place % 2 == 1 or place == 6) for place in range(7)]
    assert [int(part.indices[0]) for part in shortened(parts, updates)] == places


@pytest.fixture
def scratch(tmp_path):
    home = tmp_path / "home"
    (home / "data").mkdir(parents=True)
    (home / "data" / "known.txt").write_text("known")
    (home / "weights.pt").write_bytes(b"mine")
    return home, Scratch(str(home), tmp_path / "scratch")


def test_files_are_found_and_stay_the_user_s_own(scratch, monkeypatch):
    home, own = scratch
    monkeypatch.chdir(own.folder)
    assert (own.folder / "data" / "known.txt").read_text() == "known"
    (own.folder / "weights.pt").write_bytes(b"other")
    own.let_go("data/known.txt", keep=True)
    with open("data/known.txt", "a") as file:
        file.write(" and new")
    assert (own.folder / "data" / "known.txt").read_text() == "known and new"
    assert (home / "data" / "known.txt").read_text() == "known"
    assert (home / "weights.pt").read_bytes() == b"mine"
    assert own.written() == ["data/known.txt", "weights.pt"]


def test_a_file_that_is_only_read_is_not_written(scratch):
    _, own = scratch
    (own.folder / "weights.pt").read_bytes()
    assert own.written() == []
