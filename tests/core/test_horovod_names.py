"""Names of Horovod's lead to hvdkit's, in messages and in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdkit.training.horovod_names import REPLACED, guide

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["rank", "size", "local_rank", "DistributedOptimizer", "allreduce", "Compression"])
def test_a_name_of_horovods_says_what_to_write(name):
    with pytest.raises(AttributeError, match=re.escape(f"has no attribute {name!r}; in hvdkit, {REPLACED[name]}")):
        guide("hvdkit.torch")(name)


def test_any_other_name_is_an_attribute_error_like_pythons():
    with pytest.raises(AttributeError, match=r"^module 'hvdkit.torch' has no attribute 'ranks'$"):
        guide("hvdkit.torch")("ranks")


def test_the_docs_have_the_same_table():
    rows = re.findall(r"^\| `hvd\.(\w+)` \| (.+) \|$", (ROOT / "docs" / "from_horovod.md").read_text(), re.MULTILINE)
    assert dict(rows) == REPLACED


def test_every_backend_guides():
    for backend in ("torch", "tf", "keras"):
        assert "__getattr__ = guide(__name__)" in (ROOT / "hvdkit" / backend / "__init__.py").read_text()
