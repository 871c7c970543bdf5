"""The generated dispatch module says what was lowered, and carries what the ledger knows."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
from types import ModuleType
from typing import Any

import pytest
from harness.blocks import in_blocks
from kernwright.generator import dispatch_module, plan_generation
from kernwright.generator.environment import TEMPLATES
from kernwright.ledger import Exactness, Group, RecordedDevice, Timing, Toolkit, make_record, write_record
from kernwright.runtime import Device
from kernwright.runtime.loader import installed_compiler
from kernwright.specs import find_workspace
from kernwright.table import FORMAT, Table


def load(lab: Any) -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab_dispatch", lab.generated / "dispatch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generator_and_runtime_agree_on_the_format() -> None:
    assert dispatch_module.FORMAT == FORMAT


def test_the_table_is_what_was_lowered(lab: Any) -> None:
    generation = lab.plan
    lab.generate()
    table: Table = load(lab).TABLE
    assert table.root == lab.generated
    assert [work.label for work in table.workloads] == [
        "fp16-hc2-h48-n1-r16-tp1",
        "fp16-hc3-h64-n1-r32-tp1",
        "bf16-hc3-h64-n1-r32-tp1",
    ]
    for work, generated in zip(table.workloads, generation.workloads, strict=True):
        assert (work.family, work.spec) == ("hyper_connection", generated.spec)
        assert work.fields == generated.workload.fields()
        assert work.trees == {name: tuple(t.to_list()) for name, t in generated.workload.trees().items()}
        assert [entry.name for entry in work.candidates] == [c.candidate.name for c in generated.candidates]
        assert work.control.name == "control"
        for entry, candidate in zip(work.candidates, generated.candidates, strict=True):
            lowering = candidate.lowering
            assert dict(entry.steps) == dict(lowering.steps)
            assert dict(entry.scratch) == dict(lowering.scratch)
            assert list(entry.builds) == list(candidate.candidate.arch)
            for name, kernel in entry.kernels.items():
                launch = lowering.kernels[name]
                assert kernel.symbol == candidate.symbols[name]
                assert (kernel.grid, kernel.block, kernel.args) == (launch.grid, launch.block, launch.args)
            for build in entry.builds.values():
                text = (lab.generated / build.source).read_bytes()
                assert build.sha256 == hashlib.sha256(text).hexdigest()
                assert all(f"{kernel.symbol}(".encode() in text for kernel in entry.kernels.values())


def test_min_sms_reaches_dispatch_and_no_kernel(lab: Any) -> None:
    lab.generate()
    lab.edit("down = { ctas = 2 }", "down = { ctas = 2 }\nmin_sms = 100")
    assert set(lab.generate().written) == {"dispatch.py", "manifest.json"}
    assert [c.min_sms for c in load(lab).TABLE.workloads[1].candidates] == [0, 100, 0]


def record(lab: Any, milliseconds: float, workload: str = "fp16-hc3-h64-n1-r32-tp1", nvrtc: str = "") -> None:
    """Put into the ledger that `strided` took so long where the control took 1 ms, on an H200."""
    digests = {
        entry["candidate"]: entry
        for entry in json.loads((lab.generated / "manifest.json").read_text(encoding="utf-8"))["sources"]
        if (entry["spec"], entry["workload"], entry["arch"]) == ("small", workload, "sm_90")
    }
    versions = dict.fromkeys(("kernwright", "python", "torch", "cupy", "nvrtc", "driver"), "1.0")
    versions["nvrtc"] = nvrtc or str(installed_compiler())
    group = Group(control=(1.0, 1.0), candidate=(milliseconds, milliseconds))
    made = make_record(
        measured_at="2026-01-01T12:00:00Z",
        family="hyper_connection",
        spec="small",
        workload=workload,
        candidate="strided",
        control="control",
        device=RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200"),
        toolkit=Toolkit(**versions),
        code_sha256=digests["strided"]["code"],
        control_code_sha256=digests["control"]["code"],
        source_sha256=digests["strided"]["source_sha256"],
        control_source_sha256=digests["control"]["source_sha256"],
        cubin_sha256="0" * 64,
        machine_code_sha256=None,
        exactness=Exactness(cases=16, values=4096, mismatches=0, against="control control"),
        timing=Timing(scope="boundary", calls=1, replays=100, groups=in_blocks(group)),
    )
    write_record(lab.root / "ledger" / "records", made)


def chosen_on_h200(lab: Any) -> tuple[str, str]:
    lab.generate()
    dispatch = load(lab).DISPATCH
    fields = {
        name: value[0] if isinstance(value, tuple) else value
        for name, value in dispatch.table.workloads[1].fields.items()
    }
    h200 = Device("sm_90", 132, "NVIDIA H200", 0)
    explanation = dispatch.explain_request("hyper_connection", fields, h200)
    (about,) = (
        d.reason
        for d in explanation.decisions
        if (d.workload[:4], d.candidate) == ("fp16", "strided") and "hc3" in d.workload
    )
    return explanation.chosen, about


def test_an_admitted_record_is_dispatched_until_its_source_changes(lab: Any) -> None:
    lab.generate()
    kernels = {name: text for name, text in lab.files().items() if name.endswith(".cu")}
    assert chosen_on_h200(lab)[0] == "control"
    record(lab, 0.875)
    chosen, reason = chosen_on_h200(lab)
    assert chosen == "strided"
    assert reason == "chosen: admitted on sm_90, 132 SMs, NVIDIA H200 with a gain of 12.5% over the control"
    assert {name: text for name, text in lab.files().items() if name.endswith(".cu")} == kernels
    lab.edit("ctas = 2", "ctas = 1")
    chosen, reason = chosen_on_h200(lab)
    assert chosen == "control"
    assert reason.startswith("the record is stale: it measured code ")


def test_a_module_rewritten_within_a_second_is_not_taken_from_bytecode(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    grids = []
    for old, new in (("ctas = 2", "ctas = 1"), ("ctas = 1", "ctas = 2"), ("ctas = 2", "ctas = 1")):
        lab.edit(old, new)
        lab.generate()
        os.utime(lab.generated / "dispatch.py", ns=(10**18, 10**18))  # the texts are of one length, too
        strided = next(work for work in load(lab).TABLE.workloads if work.spec == "small").candidates[1]
        grids.append(strided.kernels["down"].grid[0])
    assert grids == [1, 2, 1]


def test_a_loser_and_a_record_of_another_workload_change_no_choice(lab: Any) -> None:
    lab.generate()
    record(lab, 0.875, workload="bf16-hc3-h64-n1-r32-tp1")
    assert chosen_on_h200(lab)[0] == "control"
    record(lab, 1.25)
    chosen, reason = chosen_on_h200(lab)
    assert chosen == "control"
    assert "says rejected" in reason


def test_the_librarys_module_is_short_readable_python() -> None:
    text = plan_generation(find_workspace(TEMPLATES)).files["dispatch.py"]
    code = [line for line in text.splitlines() if re.match(r"(import|from|def|class|if|for) ", line)]
    assert code == [
        "from pathlib import Path",
        "from ..runtime import bind",
        "from ..table import Build, Candidate, CtaRecord, DeviceKind, FamilyEntry, Kernel, Part, "
        "RecordLine, Table, Workload",
        "from ..families.all_reduce import op as _all_reduce",
        "from ..families.hyper_connection import op as _hyper_connection",
        "from ..families.linear_all_reduce import op as _linear_all_reduce",
    ]
    assert text.endswith(
        "__all__ = ['acquire_outputs', 'all_reduce', 'all_reduce_sum2', 'all_reduce_symmetric', 'communicator', "
        "'explain', 'fingerprint', 'hyper_connection', 'linear_all_reduce', 'local_communicator', 'policy', "
        "'publish', 'stats', 'torch_ops', 'warm_up']\n"
    )
