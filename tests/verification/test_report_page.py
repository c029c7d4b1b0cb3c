"""The report as a page, as a browser lays it out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest
from click.testing import CliRunner
from limits import HANG_SECONDS

from hvdkit.tools.verification.command import verify_command
from hvdkit.tools.verification.report import Check, Report
from hvdkit.tools.verification.report_page import page

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FOLLOWED = Check("distribute", "weights of <the> twin", False, "update 3: 4.0e-02", 4e-2, 1e-6, "w", 3, "10 x rounding")
CURVE = {"sizes": (0.0, 1e-7, 4e-2, float("inf")), "limits": (1e-6, 1e-6, 2e-6, 2e-6)}
LOOK = """<script>
const box = shape => { const b = shape.getBoundingClientRect(); return [b.width, b.height] };
const rows = [...document.querySelectorAll("tr")].map(row => row.innerText);
const seen = {lines: [...document.querySelectorAll("polyline")].map(box), rows, text: document.body.innerText,
              wide: document.documentElement.scrollWidth > window.innerWidth};
document.body.innerHTML = ""; document.body.append(JSON.stringify(seen));
</script>"""


def followed(**changes):
    return Check(**{**{name: getattr(FOLLOWED, name) for name in FOLLOWED.__dataclass_fields__}, **CURVE, **changes})


def looked_at(folder: Path, report: Report):
    file = folder / "page.html"
    file.write_text(page(report).replace("</html>", f"{LOOK}</html>"), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    shown = subprocess.run(
        [str(BROWSER), *flags, file.as_uri()], capture_output=True, text=True, timeout=HANG_SECONDS, check=True
    ).stdout
    found = re.search(r"<body>(.*)</body>", shown, re.DOTALL)
    assert found is not None, shown
    return json.loads(unescape(found[1]).strip())


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_browser_shows_curves_table_and_verdict(tmp_path: Path):
    left_out = Check("average", "statistics agree", None, "not made: no data")
    report = Report("train.py", "torch", "mpi", 2, 4, "float32", [followed(), left_out], ["dropout: masks differ"])
    seen = looked_at(tmp_path, report)
    limits, sizes = seen["lines"]
    # from a distance of 0 to one without end
    assert min(sizes[0], limits[0]) > 500
    assert sizes[1] > 100
    assert 0 < limits[1] < sizes[1]
    assert not seen["wide"]
    assert seen["rows"][1].split("\t") == [
        "FAILS", "distribute", "weights of <the> twin", "update 3: 4.0e-02", "1.0e-06: 10 x rounding",
    ]  # fmt: skip
    for words in ("failed: step 'distribute' is at fault", "dropout: masks differ", "statistics agree (not made"):
        assert words in seen["text"]


def test_a_page_that_cannot_be_written_is_said_before_anything_runs(tmp_path: Path):
    page_file = str(tmp_path / "missing" / "page.html")
    result = CliRunner().invoke(verify_command, ["recipe.py", "--framework", "torch", "--report", page_file])
    assert result.exit_code == 2
    assert f"--report {page_file} cannot be written: No such file or directory" in result.output


def test_a_report_without_curves_has_no_drawing():
    good = Report("train.py", "torch", "mpi", 2, 4, "float32", [Check("init", "ranks", True, "2 ranks")])
    assert "<svg" not in page(good)
    assert "verified: 2 processes compute what one would" in page(good)
