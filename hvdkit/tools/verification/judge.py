"""What every step must hold to."""

from __future__ import annotations

from hvdkit.tools.verification import contracts, outcomes
from hvdkit.tools.verification.exemptions import left_out
from hvdkit.tools.verification.metric_contract import metrics
from hvdkit.tools.verification.random_contract import random_contract
from hvdkit.tools.verification.recipe_contract import recipe_contract
from hvdkit.tools.verification.report import Check
from hvdkit.tools.verification.resumption import checkpoints
from hvdkit.tools.verification.runs import Runs
from hvdkit.tools.verification.shard_contract import shard_contract
from hvdkit.tools.verification.statistics_contract import statistics_contract


def judge(seen: Runs) -> list[Check]:
    """Check every step's contract, in the order in which one spoils the next."""
    return [
        contracts.init_contract(seen),
        contracts.pin_contract(seen),
        *recipe_contract(seen),
        *contracts.broadcast_contract(seen),
        *random_contract(seen),
        *shard_contract(seen),
        contracts.rate_contract(seen),
        *statistics_contract(seen),
        outcomes.agreement(seen),
        *outcomes.against_twin(seen),
        *metrics(seen),
        *checkpoints(seen),
        *left_out(seen),
    ]
