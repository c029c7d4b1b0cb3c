"""A script before and after its conversion: at most eight lines differ, and the training is the same."""

from __future__ import annotations

import ast
import difflib
import re

import numpy as np
import pytest
from example_runs import (
    ROOT,
    every,
    hvdkit_run,
    keras_elsewhere,
    one_engine_each,
    one_process,
    run_inside,
    succeed,
)
from ranks import UNDER_KERAS_2, Combination, but_horovod

pytestmark = UNDER_KERAS_2

FOLDER = ROOT / "examples" / "convert"
MOST_LINES = 8
BAND = 1e-3


def script(combination, kind):
    return str(FOLDER / f"{combination.framework}_{kind}.py")


def code_lines(path):
    """Return the lines of a script without its docstring, imports and blank lines."""
    text = path.read_text()
    tree = ast.parse(text)
    apart = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    if ast.get_docstring(tree):
        apart.append(tree.body[0])
    skipped = {number for node in apart for number in range(node.lineno, node.end_lineno + 1)}
    return [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in skipped]


@pytest.mark.parametrize("framework", ["torch", "tf", "keras"])
def test_at_most_eight_lines_differ_beside_imports(framework):
    before, after = (code_lines(FOLDER / f"{framework}_{kind}.py") for kind in ("serial", "hvdkit"))
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in opcodes if kind != "equal"]
    assert 0 < sum(changed) <= MOST_LINES
    assert len(after) - len(before) >= 0


@pytest.fixture(scope="session")
def trained(tmp_path_factory, pools):
    """Run a script in its own folder, once per session; return its losses by label and the weights it left."""
    done = {}

    def of(combination, kind, *flags):
        key = (combination, kind, *flags)
        if key not in done:
            folder, alone = tmp_path_factory.mktemp("convert"), one_of(combination)
            if combination.size == 1:
                (finished,) = run_inside(pools.get(alone), script(combination, kind), *flags, cwd=folder)
            else:
                command = hvdkit_run(combination, script(combination, kind), *flags)
                finished = succeed(*command, env=dict(combination.env), cwd=folder)
            losses = {}
            for label, loss in re.findall(r"^(?:\[(\d)\] )?epoch \d: loss (\S+)$", finished.stdout, re.MULTILINE):
                losses.setdefault(label, []).append(loss)
            if combination.framework == "torch":
                pools.get(alone).run(to_numpy, str(folder))
            done[key] = losses, weights_in(folder / "weights.npz")
        return done[key]

    return of


def one_of(combination):
    return Combination(combination.framework, "serial", 1, combination.env)


def to_numpy(folder):
    import numpy
    import torch

    content = torch.load(f"{folder}/weights.pt", weights_only=True)
    arrays = {name: value.numpy() for name, value in content.get("model", content).items()}
    numpy.savez(f"{folder}/weights.npz", **arrays)


def weights_in(path):
    """Return the model's weights; a file of hvdkit holds the optimizer's and the state too, a serial one does not."""
    with np.load(path, allow_pickle=False) as file:
        names = [name for name in file.files if name.startswith("model/")] or file.files
        return [file[name] for name in names]


def flat(weights):
    return np.concatenate([array.ravel() for array in weights]).astype(np.float64)


@pytest.mark.parametrize("combination", one_process())
def test_one_process_is_the_serial_script_bit_for_bit(combination, trained):
    plain_losses, plain = trained(combination, "serial", "64", "0.01")
    losses, weights = trained(combination, "hvdkit", "64", "0.01")
    assert len(plain_losses[""]) == 2
    assert losses == plain_losses
    assert len(weights) == len(plain) == 4
    for ours, theirs in zip(weights, plain, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("combination", one_engine_each(but_horovod([*every(), *keras_elsewhere()])))
def test_two_processes_with_half_the_batch_are_the_serial_script(combination, trained):
    losses, after = trained(one_of(combination), "serial", "128", "0.02")
    _, start = trained(one_of(combination), "serial", "128", "0")
    both, weights = trained(combination, "hvdkit", "64", "0.01")
    assert set(both) == {"0", "1"}
    assert both["0"] == both["1"]
    assert [float(loss) for loss in both["0"]] == pytest.approx([float(loss) for loss in losses[""]], rel=1e-4)
    w_1, w_0, w_n = flat(after), flat(start), flat(weights)
    assert np.linalg.norm(w_n - w_1) / np.linalg.norm(w_1 - w_0) <= BAND
