"""``import hvdkit`` is light: nothing outside the standard library, and quick."""

from __future__ import annotations

import json
import sys

import pytest
from ranks import launch_fresh

REPORT = """
import json, sys, time
before = set(sys.modules)
began = time.process_time()
import hvdkit
spent = time.process_time() - began
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(json.dumps([spent, sorted(new - set(sys.stdlib_module_names))]))
"""


@pytest.mark.processes
def test_importing_hvdkit_loads_only_the_standard_library_in_a_tenth_of_a_second():
    runs = [json.loads(launch_fresh(REPORT).stdout) for _ in range(3)]
    assert [foreign for _, foreign in runs] == [["hvdkit"]] * 3
    assert min(spent for spent, _ in runs) < 0.1


@pytest.mark.processes
def test_a08_declaring_a_recipe_loads_no_framework_and_no_numpy():
    script = """
import sys
import hvdkit
hvdkit.Recipe(model="mnist_cnn", data=lambda: None, optimizer=hvdkit.SGD(lr=0.1)).replace(epochs=2)
print(sorted({"numpy", "torch", "tensorflow", "keras", "jax", "horovod", "mpi4py"} & set(sys.modules)))
"""
    assert launch_fresh(script).stdout.strip() == "[]"


@pytest.mark.processes
def test_every_public_name_is_there():
    script = """
import hvdkit
print(all(hasattr(hvdkit, name) for name in hvdkit.__all__), set(hvdkit.__all__) <= set(dir(hvdkit)))
try:
    hvdkit.nothing
except AttributeError as error:
    print(error)
"""
    assert launch_fresh(script).stdout.splitlines() == ["True True", "module 'hvdkit' has no attribute 'nothing'"]


def test_the_tests_own_process_has_no_framework():
    assert not {"torch", "tensorflow", "keras", "jax"} & set(sys.modules)
