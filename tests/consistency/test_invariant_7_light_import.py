"""Invariant 7: a backend brings in no framework beyond those that its own framework brings in by itself.

``import hvdkit`` alone is tested in tests/core/test_light_import.py.
"""

from __future__ import annotations

import json

import pytest
from cells import alone
from ranks import launch_fresh

SCRIPT = """
import importlib, json, sys
HEAVY = {"torch", "torchvision", "tensorflow", "keras", "jax", "horovod", "mpi4py", "mlxtend", "matplotlib"}
framework, package = sys.argv[1:]
importlib.import_module(package)
before = HEAVY & set(sys.modules)
importlib.import_module(f"hvdkit.{framework}")
print(json.dumps(sorted(HEAVY & set(sys.modules) - before)))
"""


@pytest.mark.parametrize("combination", alone())
def test_a_backend_imports_nothing_heavy_beyond_its_framework(combination):
    package = {"torch": "torch", "tf": "tensorflow", "keras": "keras"}[combination.framework]
    done = launch_fresh(SCRIPT, args=[combination.framework, package])
    assert done.code == 0, done.stderr
    brought = json.loads(done.stdout.splitlines()[-1])
    # tensorflow loads its keras when it is asked for, and hvdkit.tf asks
    assert set(brought) <= ({"keras"} if combination.framework == "tf" else set())
