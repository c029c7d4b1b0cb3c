"""A report as one HTML page that needs nothing else: the verdict, distances by update as a drawing, and the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from hvdkit.tools.verification.report import Check, Report

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2430 }
h1 { font-size: 1.3rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { padding: .7rem 1rem; border-left: .4rem solid; background: #f4f6f8 }
.verified { border-color: #1b7f4b } .failed { border-color: #b3261e }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; vertical-align: top; padding: .35rem .6rem }
td, th { border-bottom: 1px solid #dde2e8 } tr.failed td { background: #fdecea }
svg { width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #4a5563 }
"""
_COLOURS = ("#1f5fbf", "#b3571e", "#1b7f4b", "#7b3fa0", "#a01f4d", "#5d6b1e")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 900, 340, 70, 40, 15
_MARKS = {True: "ok", False: "FAILS", None: "-"}


def page(report: Report) -> str:
    """Return the report as HTML."""
    drawn = [check for check in report.checks if check.sizes]
    state = "verified" if report.passed else "failed"
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>hvdkit verify: {escape(report.recipe)}</title>',
        f"<style>{_STYLE}</style>",
        f"<h1>{escape(report.title())}</h1>",
        f'<p class="verdict {state}">{escape(report.verdict())}</p>',
        *(["<h2>Distance after every update</h2>", _drawing(drawn)] if drawn else []),
        "<h2>Checks</h2>",
        _table(report.checks),
        *_list("Exempt", report.exemptions),
        *_list("Not checked", report.not_checked),
    ]
    return "\n".join([*parts, "</html>", ""])


def _list(heading: str, entries: Sequence[str]) -> Iterator[str]:
    if entries:
        yield f"<h2>{heading}</h2><ul>{''.join(f'<li>{escape(entry)}</li>' for entry in entries)}</ul>"


def _table(checks: Sequence[Check]) -> str:
    heads = ("", "step", "what must hold", "found", "limit")
    rows = [f"<tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>"]
    for check in checks:
        cells = (_MARKS[check.passed], check.step, check.claim, check.found, check.limit_in_words())
        failed = ' class="failed"' if check.passed is False else ""
        rows.append(f"<tr{failed}>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    return f"<table>{''.join(rows)}</table>"


def _drawing(checks: Sequence[Check]) -> str:
    """Draw distances and, dashed, their limits on a logarithmic axis, at whose lower end 0 lies."""
    values = [value for check in checks for value in [*(check.sizes), *(check.limits)]]
    powers = [math.log10(value) for value in values if value > 0 and math.isfinite(value)]
    low, high = math.floor(min(powers, default=-9)) - 1, math.ceil(max(powers, default=0))
    updates = max(len(check.sizes) for check in checks)

    def point(update: int, value: float) -> str:
        power = low if value <= 0 else high if not math.isfinite(value) else math.log10(value)
        x = _LEFT + (update - 1) * (_WIDTH - _LEFT - 20) / max(updates - 1, 1)
        return f"{x:.1f},{_TOP + (high - power) * (_HEIGHT - _BOTTOM - _TOP) / (high - low):.1f}"

    shapes = list(_axes(low, high, updates))
    for colour, check in zip(_COLOURS * len(checks), checks, strict=False):
        for taken, dashes in ((check.limits, ' stroke-dasharray="6 5"'), (check.sizes, "")):
            points = [point(update, value) for update, value in enumerate(taken, 1)]
            shapes.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}"{dashes}/>')
            shapes += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>' for x, y in map(_split, points)]
    legend = "".join(
        f'<li style="color:{colour}">{escape(check.claim)} (dashed: limit)</li>'
        for colour, check in zip(_COLOURS * len(checks), checks, strict=False)
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(shapes)}</svg><ul>{legend}</ul>'


def _split(point: str) -> tuple[str, str]:
    x, _, y = point.partition(",")
    return x, y


def _axes(low: int, high: int, updates: int) -> Iterator[str]:
    for power in range(low, high + 1):
        y = _TOP + (high - power) * (_HEIGHT - _BOTTOM - _TOP) / (high - low)
        label = "0" if power == low else f"1e{power}"
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dde2e8"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 12}">update 1</text>'
    yield f'<text x="{_WIDTH - 20}" y="{_HEIGHT - 12}" text-anchor="end">update {updates}</text>'
