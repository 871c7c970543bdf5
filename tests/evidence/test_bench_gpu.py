"""The bench on a real GPU, against planted candidates: slow, wrong, doing nothing, and the control once more."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from kernwright.evidence.bench import bench
from kernwright.evidence.benchmark_run import Options
from kernwright.evidence.cells import Cell
from kernwright.evidence.graphs import capture, placed_anew
from kernwright.evidence.health import monitor
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.timing import Pace, paired
from kernwright.families.hyper_connection.evidence import EVIDENCE
from kernwright.families.hyper_connection.op import HyperConnection
from kernwright.generated.dispatch import TABLE
from kernwright.ledger import Exactness, RecordFile, Rule, Timing, check, judge
from kernwright.ledger.names import record_name
from kernwright.runtime import bind
from kernwright.runtime.device import current, serves
from kernwright.table import Build

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

UP_MIX = "  using namespace up_mix;\n"
PLANTED = {
    "slow": (UP_MIX, UP_MIX + "  __nanosleep(3000);\n"),
    "wrong": ("sigmoid(rounded(total))", "sigmoid(total)"),
    "nothing": (UP_MIX, UP_MIX + "  if (LOW_RANK > 0) return;\n"),
    "twin": ("// ---- workload ----", "// ---- the workload ----"),
}
EXACT = Exactness(cases=1, values=1, mismatches=0, against="itself", first=None)


@pytest.fixture(scope="module")
def device():
    import torch

    return torch.device("cuda", 0)


@pytest.fixture(scope="module")
def planted(tmp_path_factory, device):
    """A dispatch of the FP16 workload whose other candidates are mutants of its control's text."""
    root = tmp_path_factory.mktemp("planted")
    work = next(entry for entry in TABLE.workloads if entry.name.startswith("qwen38_flash_tp1/fp16"))
    control = work.control
    arch = serves(control.builds, current(device).arch)
    text = (TABLE.root / control.builds[arch].source).read_text()
    candidates = []
    for name, (old, new) in {"control": ("", ""), **PLANTED}.items():
        assert text.count(old) >= 1
        mutant = text.replace(old, new) if old else text
        (root / f"{name}.cu").write_text(mutant)
        digest = hashlib.sha256(mutant.encode()).hexdigest()
        build = Build(digest, f"{name}.cu", digest)
        candidates.append(replace(control, name=name, builds={arch: build}))
    dispatch = bind(replace(TABLE, root=root, workloads=(replace(work, candidates=tuple(candidates)),)))
    HyperConnection(dispatch)
    return dispatch


def test_planted_candidates(planted, device, tmp_path):
    work = planted.table.workloads[0]
    options = Options(Pace(groups=5, replays=10, most=10), blocks=5, peers=(), failures=tmp_path)
    with monitor(device) as watch:
        result = bench(planted, EVIDENCE, work, Cell(RankContext(device)), watch, (), options)
    records = {record.candidate: record for record in result.records}
    assert {name: record.verdict for name, record in records.items()} == {
        "control": "no_difference",
        "slow": "rejected",
        "wrong": "rejected",
        "nothing": "rejected",
        "twin": "no_difference",
    }
    assert records["slow"].exactness.exact
    assert records["slow"].gain < -0.05
    for name in ("wrong", "nothing"):  # refused before they were timed
        assert records[name].timing is None
        assert records[name].exactness.mismatches > 0
    assert "block_input" in records["wrong"].reason
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"{work.label}-nothing-{current(device).arch}-1",
        f"{work.label}-wrong-{current(device).arch}-1",
    ]
    assert check([RecordFile(record_name(record), record) for record in result.records]) == []


@pytest.mark.parametrize("times", [5, pytest.param(20, marks=pytest.mark.long)])
def test_the_control_against_itself(planted, device, figures, times):
    """The control against its twin never shows a difference, however often both are allocated and captured anew."""
    work = planted.table.workloads[0]
    here = current(device)
    arch = next(iter(work.control.builds))
    verdicts, gains = [], []

    def block(number, watch):
        held = placed_anew(number + 1)
        chain = EVIDENCE.chain(work, device, 500 + number)
        plans = [planted.plan_named(work.label, name, arch, "boundary", here) for name in ("control", "twin")]
        graphs = [capture(lambda plan=plan: chain.run(plan)) for plan in plans]
        groups = paired(*graphs, watch, Pace(groups=5, replays=10, most=10), block=number)
        del held
        return chain.calls, groups

    with monitor(device) as watch:
        for _ in range(times):
            blocks = [block(number, watch) for number in range(4)]
            groups = tuple(group for _, found in blocks for group in found)
            timing = Timing(scope="chain", calls=blocks[0][0], replays=10, groups=groups)
            judged = judge(EXACT, timing, Rule(), is_control=False)
            verdicts.append(judged.verdict)
            gains.append(judged.gain)
    figures[f"gain of the control over itself, {times} runs"] = gains
    assert verdicts == ["no_difference"] * times


def test_a_block_lies_elsewhere_than_the_one_before(device):
    """Behind the ballast of another block small and large tensors move."""

    def addresses(block):
        held = placed_anew(block)
        small, large = (torch.empty(size, dtype=torch.uint8, device=device) for size in (4096, 64 << 20))
        found = small.data_ptr(), large.data_ptr()
        del held
        return found

    small, large = zip(*(addresses(block) for block in range(1, 6)), strict=True)
    assert len(set(small)) > 1
    assert len(set(large)) > 1


def test_a_second_process_makes_groups_invalid(planted, device):
    """NVML sees who else is on the GPU; no verdict comes of such a run."""
    work = planted.table.workloads[0]
    here = current(device)
    arch = next(iter(work.control.builds))
    chain = EVIDENCE.chain(work, device, 500)
    plan = planted.plan_named(work.label, "control", arch, "boundary", here)
    graph = capture(lambda: chain.run(plan))
    load = (
        "import torch, time\n"
        "a = torch.randn(8192, 8192, device='cuda')\n"
        "end = time.time() + 60\n"
        "print('up', flush=True)\n"
        "while time.time() < end: a = (a @ a).clamp(-1, 1)\n"
    )
    with monitor(device) as watch:
        assert watch.snapshot().foreign == ()
        other = subprocess.Popen([sys.executable, "-c", load], stdout=subprocess.PIPE, text=True)
        try:
            assert other.stdout.readline() == "up\n"
            time.sleep(1)
            groups = paired(graph, graph, watch, Pace(groups=7, replays=10, most=8))
        finally:
            other.kill()
            other.wait()
    assert all("foreign process" in group.problem for group in groups)
    timing = Timing(scope="chain", calls=chain.calls, replays=10, groups=groups)
    judged = judge(EXACT, timing, Rule(), is_control=False)
    assert judged.verdict == "invalid"
    assert "foreign process" in judged.reason
