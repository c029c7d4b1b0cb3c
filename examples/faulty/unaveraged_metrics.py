"""Wrong: every process reports the loss of its own samples, so early stopping and plots depend on who is asked.

hvdkit verify examples/faulty/unaveraged_metrics.py --framework torch

Right: leave ``average`` as it is; it adds up sums and counts over all processes. (Keras's ``fit`` always does.)
"""

from __future__ import annotations

from small_net import small_recipe

recipe = small_recipe.replace(average=None)
