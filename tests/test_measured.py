"""The document of measurements says what the ledger's figures and records say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
import statistics
from pathlib import Path
from types import ModuleType

import pytest
import typer
from harness.paths import CHECKOUT

ROOT = CHECKOUT


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
    earlier = report.of_earlier_code()
    if earlier:
        assert earlier in report.document()
        pytest.skip(earlier.strip())
    assert min(gains.values()) > 0.99
    assert sorted(gain for (_, _, m), gain in gains.items() if m == 8192)[1] > 1.03


def test_a_sweep_is_added_from_its_records(
    report: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Medians of what was timed; not of several workloads, whose candidates may have one name."""
    monkeypatch.setattr(report, "FIGURES", tmp_path)
    (tmp_path / "hopper_sweeps.json").write_text('{"old": {"one": 1.0}}', encoding="utf-8")
    both = ROOT / "ledger" / "records" / "qwen38_flash_tp1"
    with pytest.raises(typer.BadParameter, match="records of 2 workloads; a sweep has one: name its folder"):
        report.add_sweep(both, "new")
    report.add_sweep(both / "fp16-hc4-h2560-n1-r320-tp1", "new")
    found = json.loads((tmp_path / "hopper_sweeps.json").read_text(encoding="utf-8"))
    assert found["old"] == {"one": 1.0}
    assert {"one_kernel", "two_kernels"} < set(found["new"])
    assert "replicated" not in found["new"]
    newest = max(
        (both / "fp16-hc4-h2560-n1-r320-tp1").glob("one_kernel.*.json"),
        key=lambda path: path.name.split(".")[-2],
    )
    groups = json.loads(newest.read_text(encoding="utf-8"))["timing"]["groups"]
    means = [sum(group["candidate"]) / len(group["candidate"]) for group in groups if not group["problem"]]
    assert found["new"]["one_kernel"] == pytest.approx(statistics.median(means), abs=1e-5)


def test_plots_are_drawn(report: ModuleType, tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    for draw, lines in ((report.plot_all_reduce, 7), (report.plot_timeline, 0)):
        axes = Figure().subplots()
        draw(axes)
        assert len(axes.lines) == lines
        assert axes.lines or axes.collections
