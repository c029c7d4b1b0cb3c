"""Invariant 2: parameters, slots and learning rate agree after every update, also after a resume.

BatchNorm's statistics agree when they are evaluated and saved; random state is each rank's own.

``test_matrix.py`` compares the ranks after every update of each of its cases as well.
"""

from __future__ import annotations

import pytest
from cells import pairs


def body(framework, folder):
    from agreement import train

    return train(framework, folder)


@pytest.mark.parametrize("ranks", pairs(), indirect=True)
def test_ranks_agree_after_every_update_and_at_every_evaluation_also_after_a_resume(ranks, tmp_path):
    first, second = ranks.run(body, ranks.combination.framework, str(tmp_path))
    assert first["updates"] == second["updates"]
    assert len(set(first["updates"])) == 20
    assert first["evaluated"] == second["evaluated"]
    assert len(set(first["evaluated"])) == 4
    # between evaluations statistics are local, without which this test would show nothing
    assert first["local statistics"] != second["local statistics"]
    assert first["resumed statistics"] == second["resumed statistics"]
    assert first["mask"] != second["mask"]
