"""hvdkit, broken in one place at a time; each name below is a function that breaks it and returns a recipe.

hvdkit verify tests/consistency/mutants.py:skip_broadcast --framework torch -np 2

A mutant is in force in every process that loads this file, so that nothing but the tool's own arithmetic is right.
"""

from __future__ import annotations

from mutant_gradients import *  # noqa: F403
from mutant_measures import *  # noqa: F403
from mutant_plans import *  # noqa: F403
from mutant_rates import *  # noqa: F403
from mutant_recipes import MUTANTS as MUTANTS
from mutant_recipes import accumulated as accumulated
from mutant_recipes import measured as measured
from mutant_recipes import normalised as normalised
from mutant_recipes import recipe as recipe
from mutant_recipes import synchronised as synchronised
from mutant_records import *  # noqa: F403
from mutant_resumes import *  # noqa: F403
from mutant_samples import *  # noqa: F403
from mutant_starts import *  # noqa: F403
from mutant_states import *  # noqa: F403
from mutant_updates import *  # noqa: F403
