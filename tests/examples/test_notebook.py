"""The notebook through a real kernel, and Horovod's own ``run`` around a function that uses hvdkit."""

from __future__ import annotations

import ast
import json

import pytest
from example_runs import ROOT, available, every, succeed
from ranks import UNDER_KERAS_2, Combination

pytestmark = UNDER_KERAS_2

CHOICE = 'framework = "torch"'

EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[1])
"""

AROUND_HVDKIT = """
import sys
import horovod

def training_func(framework, data_dir):
    import functools
    import hvdkit

    recipe = hvdkit.Recipe(
        model="mnist_cnn",
        data=functools.partial(hvdkit.datasets.mnist, data_dir),
        optimizer=hvdkit.Adam(lr=0.001),
    )
    trainer = hvdkit.apply(recipe, framework=framework)
    loss = trainer.fit().values("loss")[-1]
    return [trainer.world.rank, trainer.world.size, trainer.world.engine.name, loss]

if __name__ == "__main__":
    print("results:", horovod.run(training_func, args=(sys.argv[1], sys.argv[2]), np=2))
"""


def framework_here():
    """Return a framework that has an engine for 2 processes here."""
    found = available(every())
    if not found:
        pytest.skip("there is no framework with an engine here")
    return found[0].framework


@pytest.mark.processes
def test_f08_the_notebook_prints_one_result_for_each_rank(tmp_path):
    pytest.importorskip("ipykernel")
    pytest.importorskip("nbclient")
    text = (ROOT / "examples" / "notebook.ipynb").read_text()
    assert json.dumps(CHOICE)[1:-1] in text
    path = tmp_path / "notebook.ipynb"
    path.write_text(text.replace(json.dumps(CHOICE)[1:-1], json.dumps(f'framework = "{framework_here()}"')[1:-1]))
    succeed("python", "-c", EXECUTE, str(path), cwd=tmp_path)
    outputs = json.loads(path.read_text())["cells"][-1]["outputs"]
    printed = "".join("".join(output["text"]) for output in outputs)
    results = [ast.literal_eval(line) for line in printed.splitlines()]
    assert [result["rank"] for result in results] == [0, 1]
    assert results[0]["val_accuracy"] == results[1]["val_accuracy"] > 0.85


HOROVOD: list[Combination] = [one for one in available(every()) if one.engine == "horovod"]


@pytest.mark.processes
@pytest.mark.horovod
@pytest.mark.skipif(not HOROVOD, reason="there is no Horovod for a framework here")
def test_horovod_run_takes_a_function_that_uses_hvdkit(tmp_path, digits):
    script = tmp_path / "around.py"
    script.write_text(AROUND_HVDKIT)
    printed = succeed("python", str(script), HOROVOD[0].framework, str(digits), cwd=tmp_path).stdout
    (line,) = [line for line in printed.splitlines() if line.startswith("results: ")]
    first, second = ast.literal_eval(line.removeprefix("results: "))
    assert (first[:3], second[:3]) == ([0, 2, "horovod"], [1, 2, "horovod"])
    assert first[3] == second[3]
