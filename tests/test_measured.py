"""The document of measurements says what the ledger's figures and records say, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report", ROOT / "benchmarks" / "report.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_document_is_the_figures(report: ModuleType) -> None:
    assert report.document() == (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")


def test_what_is_dispatched_beats_the_best_serial_arm(report: ModuleType) -> None:
    """Never more than noise slower, and by 3% on two of three shapes at 8,192 rows."""
    gains = {}
    for row in report.linear_rows():
        chosen = report.taken(row)
        best = min(row["us"][name] for name in report.SERIAL)
        gains[row["width"], row["k"], row["m"]] = (
            best / row["us"]["serial, ours" if chosen == "serial" else chosen]
        )
    assert len(gains) == 7 * 3
    assert min(gains.values()) > 0.99
    assert sorted(gain for (_, _, m), gain in gains.items() if m == 8192)[1] > 1.03


def test_plots_are_drawn(report: ModuleType, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    for draw, lines in ((report.plot_all_reduce, 7), (report.plot_timeline, 0)):
        axes = Figure().subplots()
        draw(axes)
        assert len(axes.lines) == lines
        assert axes.lines or axes.collections
