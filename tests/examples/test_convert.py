"""Scripts before and after their conversion: few lines differ, and the training is the same."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass
from pathlib import Path

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
BAND = 1e-3


@dataclass(frozen=True)
class Script:
    """A pair of scripts: ``lr`` is the rate for ``batch``; ``scaled`` says whether it grows with the global batch."""

    framework: str
    topic: str = ""
    batch: int = 64
    lr: float = 0.01
    scaled: bool = True
    runs: int = 1
    most_lines: int = 10

    @property
    def name(self) -> str:
        return f"{self.framework}_{self.topic}" if self.topic else self.framework

    def path(self, kind: str) -> Path:
        return FOLDER / f"{self.name}_{kind}.py"

    def flags(self, processes: int = 1) -> tuple[str, str]:
        """Return batch and rate with which one process does what ``processes`` do."""
        return str(self.batch * processes), str(self.lr * (processes if self.scaled else 1))


PLAIN = {framework: Script(framework, most_lines=8) for framework in ("torch", "tf", "keras")}
# what people train beside classifiers; those for Keras have tapes of TensorFlow's
OTHERS = [
    Script("torch", "gan"),
    Script("torch", "vae", 32, 0.001, scaled=False),
    Script("torch", "words", 16, 0.25),
    Script("torch", "lbfgs", 250, 0.5, scaled=False),
    Script("torch", "two_inputs"),
    Script("torch", "unfreezing"),
    Script("torch", "penalty"),
    Script("keras", "gan"),
    Script("keras", "vae", lr=0.0001),
    Script("keras", "classes"),
    Script("keras", "two_inputs"),
    Script("keras", "go_on", runs=2),
    Script("tf", "two_models"),
]


def others(*engines_of):
    """Return each of the other scripts with each combination of its framework."""
    return [
        pytest.param(script, entry.values[0], marks=entry.marks, id=f"{script.name}-{entry.id}")
        for script in OTHERS
        for entry in engines_of
        if entry.values[0].framework == script.framework and not entry.values[0].env
    ]


def code_lines(path):
    """Return the lines of a script without its docstring, imports and blank lines."""
    text = path.read_text()
    tree = ast.parse(text)
    apart = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    if ast.get_docstring(tree):
        apart.append(tree.body[0])
    skipped = {number for node in apart for number in range(node.lineno, node.end_lineno + 1)}
    return [line for number, line in enumerate(text.splitlines(), 1) if line.strip() and number not in skipped]


def test_every_script_has_its_pair_and_is_run_here():
    names = {path.stem for path in FOLDER.glob("*.py")}
    assert names == {script.path(kind).stem for script in (*PLAIN.values(), *OTHERS) for kind in ("serial", "hvdkit")}


@pytest.mark.parametrize("script", [*PLAIN.values(), *OTHERS], ids=lambda script: script.name)
def test_few_lines_differ_beside_imports(script):
    before, after = (code_lines(script.path(kind)) for kind in ("serial", "hvdkit"))
    opcodes = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changed = [max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in opcodes if kind != "equal"]
    assert 0 < sum(changed) <= script.most_lines
    assert len(after) - len(before) >= 0


@pytest.fixture(scope="session")
def trained(tmp_path_factory, pools):
    """Run a script in its own folder, once per session; return its losses by rank and the weights it left."""
    done = {}

    def of(script, combination, kind, flags, by_command=False):
        key = (script, combination, kind, flags, by_command)
        if key not in done:
            folder, losses = tmp_path_factory.mktemp("convert"), {}
            for _ in range(script.runs):
                for rank, out in enumerate(outputs(pools, script, combination, kind, flags, folder, by_command)):
                    losses.setdefault(rank, []).extend(re.findall(r"^epoch \d: loss (\S+)$", out, re.MULTILINE))
            if script.framework == "torch":
                pools.get(one_of(combination)).run(to_numpy, str(folder))
            done[key] = losses, weights_in(folder / "weights.npz")
        return done[key]

    return of


def outputs(pools, script, combination, kind, flags, folder, by_command):
    """Return what each rank prints."""
    path = str(script.path(kind))
    if not by_command:
        ended = run_inside(pools.get(combination), path, *flags, cwd=folder)
        assert all(finished.code == 0 for finished in ended), [finished.stderr for finished in ended]
        return [finished.stdout for finished in ended]
    command = hvdkit_run(combination, path, *flags)
    lines = succeed(*command, env=dict(combination.env), cwd=folder).stdout.splitlines()
    return ["\n".join(line[4:] for line in lines if line.startswith(f"[{rank}] ")) for rank in range(combination.size)]


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


def check_alone(trained, script, combination):
    plain_losses, plain = trained(script, combination, "serial", script.flags())
    losses, weights = trained(script, combination, "hvdkit", script.flags())
    assert len(plain_losses[0]) >= 2
    assert losses == plain_losses
    assert len(weights) == len(plain) >= 2
    for ours, theirs in zip(weights, plain, strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def check_two(trained, script, combination, by_command):
    alone, flags = one_of(combination), script.flags(2)
    losses, after = trained(script, alone, "serial", flags)
    _, start = trained(script, alone, "serial", (flags[0], "0"))
    both, weights = trained(script, combination, "hvdkit", script.flags(), by_command)
    assert set(both) == {0, 1}
    assert both[0] == both[1]
    assert [float(loss) for loss in both[0]] == pytest.approx([float(loss) for loss in losses[0]], rel=1e-4)
    w_1, w_0, w_n = flat(after), flat(start), flat(weights)
    assert np.linalg.norm(w_n - w_1) / np.linalg.norm(w_1 - w_0) <= BAND


@pytest.mark.parametrize("combination", one_process())
def test_one_process_is_the_serial_script_bit_for_bit(combination, trained):
    check_alone(trained, PLAIN[combination.framework], combination)


@pytest.mark.parametrize("combination", one_engine_each(but_horovod([*every(), *keras_elsewhere()])))
def test_two_processes_with_half_the_batch_are_the_serial_script(combination, trained):
    check_two(trained, PLAIN[combination.framework], combination, by_command=True)


@pytest.mark.parametrize(("script", "combination"), others(*one_process()))
def test_other_scripts_on_one_process_are_the_serial_ones_bit_for_bit(script, combination, trained):
    check_alone(trained, script, combination)


@pytest.mark.parametrize(("script", "combination"), others(*one_engine_each(but_horovod(every()))))
def test_other_scripts_on_two_processes_are_the_serial_ones(script, combination, trained):
    check_two(trained, script, combination, by_command=False)
