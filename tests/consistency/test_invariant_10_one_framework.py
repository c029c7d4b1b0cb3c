"""Invariant 10: a process trains with one tensor library; a second backend is refused.

TensorFlow first, then hvdkit.torch: tests/backends/torch/test_torch_refusals.py.
"""

from __future__ import annotations

import pytest
from cells import alone
from ranks import launch_fresh

SCRIPT = """
import importlib, sys
import hvdkit.job.world
first, second = sys.argv[1:]
importlib.import_module(f"hvdkit.{first}").init("serial")
print("joined", flush=True)
# what the other backend's init calls, without its framework in this environment
hvdkit.job.world.init("auto", second)
"""


@pytest.mark.parametrize("combination", alone())
def test_a_second_backend_in_one_process_is_refused_in_one_line(combination):
    first, second = {"torch": ("torch", "tf")}.get(combination.library, (combination.library, "torch"))
    done = launch_fresh(SCRIPT, args=[combination.framework, second])
    assert done.stdout == "joined\n"
    assert done.code == 1
    messages = {
        f"hvdkit: error: this process already trains with {first!r}; start another process for {second!r}",
        "hvdkit: error: TensorFlow is already loaded in this process; train with torch in a separate process",
    }
    assert done.stderr.strip().splitlines()[-1] in messages
    assert "Traceback" not in done.stderr
