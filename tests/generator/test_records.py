"""The dispatch table follows the ledger: one record a candidate and device, none that contradicts itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from harness.blocks import in_blocks
from kernwright.generator.records import current_sources, table_records
from kernwright.ledger import (
    Exactness,
    Group,
    Record,
    RecordedDevice,
    RecordFile,
    Timing,
    Toolkit,
    make_record,
    read_records,
    write_record,
)
from kernwright.runtime import Device as RuntimeDevice
from kernwright.runtime.policy import Policy
from kernwright.specs import SpecError

LABEL = "fp16-hc3-h64-n1-r32-tp1"
EXACT = Exactness(cases=16, values=4096, mismatches=0, against="control control")
WRONG = Exactness(
    cases=16, values=4096, mismatches=1, against="control control", first="x[0, 0]: 1.0, not 2.0"
)


def made(lab: Any, ratio: float | None = 0.875, **changes: Any) -> Record:
    """What a bench of `strided` finds on an H200; not timed where `ratio` is None."""
    current = current_sources(lab.plan.workloads)
    group = Group(control=(1.0, 1.0), candidate=(ratio or 1.0, ratio or 1.0))
    facts: dict[str, Any] = {
        "measured_at": "2026-01-01T12:00:00Z",
        "family": "hyper_connection",
        "spec": "small",
        "workload": LABEL,
        "candidate": "strided",
        "control": "control",
        "device": RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200"),
        "toolkit": Toolkit(**dict.fromkeys(Toolkit.model_fields, "1.0")),
        "code_sha256": current["small", LABEL, changes.get("candidate", "strided"), "sm_90"],
        "control_code_sha256": current["small", LABEL, changes.get("control", "control"), "sm_90"],
        "source_sha256": "0" * 64,
        "control_source_sha256": "0" * 64,
        "cubin_sha256": None,
        "machine_code_sha256": None,
        "exactness": EXACT,
        "timing": None
        if ratio is None
        else Timing(scope="boundary", calls=1, replays=9, groups=in_blocks(group)),
    }
    return make_record(**(facts | changes))


def put(lab: Any, *args: Any, **changes: Any) -> Path:
    return write_record(ledger(lab), made(lab, *args, **changes))


def ledger(lab: Any) -> Path:
    root: Path = lab.root
    return root / "ledger" / "records"


def table(lab: Any) -> list[tuple[str, str, float | None, bool]]:
    """What the table says of the workload: candidate, verdict, gain, exactness."""
    generation = lab.plan
    (entry,) = (w for w in generation.workloads if (w.spec, w.workload.label()) == ("small", LABEL))
    files = read_records(ledger(lab))
    return [
        (entered.file.record.candidate, entered.verdict, entered.gain, entered.file.record.exactness.exact)
        for entered in table_records(entry, files, current_sources(generation.workloads))
    ]


def test_one_record_a_candidate_and_device_enters_the_table(lab: Any) -> None:
    put(lab)
    put(lab, measured_at="2026-01-02T12:00:00Z")
    put(lab, None, measured_at="2026-01-03T12:00:00Z")
    put(lab, 0.75, candidate="staged")
    put(lab, 0.5, workload="bf16-hc3-h64-n1-r32-tp1")
    assert table(lab) == [("staged", "admitted", 0.25, True), ("strided", "admitted", 0.125, True)]
    text = lab.plan.files["dispatch.py"]
    assert text.count("                RecordLine(\n") == 3
    assert "gain=0.125" in text
    assert f"source='small/{LABEL}/strided.sm_90-nvidia-h200." in text
    assert "20260102T120000Z.json'" in text


def test_a_later_run_that_pleases_replaces_none(lab: Any) -> None:
    put(lab, 1.25)
    put(lab, measured_at="2026-01-02T12:00:00Z")
    ((candidate, verdict, gain, _),) = table(lab)
    assert (candidate, verdict) == ("strided", "no_difference")
    assert gain == pytest.approx(1 - (1.25 * 0.875) ** 0.5)


def test_a_time_against_a_control_that_has_changed_admits_nothing(lab: Any) -> None:
    put(lab)
    lab.edit("budget = { registers = 128 }", "down = { load_bytes = 4 }")
    assert table(lab) == [("strided", "invalid", None, True)]


def test_a_mismatch_stays_one_whatever_the_control(lab: Any) -> None:
    put(lab, exactness=WRONG)
    lab.edit("budget = { registers = 128 }", "down = { load_bytes = 4 }")
    assert table(lab) == [("strided", "rejected", None, False)]


def strided_on(lab: Any, device: RuntimeDevice, policy: Policy) -> tuple[bool, str]:
    """Whether dispatch would take `strided` there, and why."""
    lab.generate()
    spec = importlib.util.spec_from_file_location("lab_dispatch", lab.generated / "dispatch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (work,) = (w for w in module.TABLE.workloads if (w.spec, w.label) == ("small", LABEL))
    fields = {name: v[0] if isinstance(v, tuple) else v for name, v in work.fields.items()}
    explanation = module.DISPATCH.explain_request("hyper_connection", fields, device, policy=policy)
    (decision,) = (d for d in explanation.decisions if LABEL in d.workload and d.candidate == "strided")
    return explanation.chosen == "strided", decision.reason


@pytest.mark.parametrize("policy", ["measured", "verified"])
def test_a_later_pass_doesnt_undo_a_mismatch_on_any_device(lab: Any, policy: Policy) -> None:
    put(lab, None, exactness=WRONG)
    put(lab, measured_at="2026-01-02T12:00:00Z")
    put(
        lab,
        measured_at="2026-01-03T12:00:00Z",
        device=RecordedDevice(arch="sm_90", sm_count=114, name="NVIDIA H100 PCIe"),
    )
    assert table(lab) == [("strided", "rejected", None, False)]
    out = (False, "this source failed exactness on sm_90, 132 SMs, NVIDIA H200")
    assert strided_on(lab, RuntimeDevice("sm_90", 132, "NVIDIA H200", 0), policy) == out
    assert strided_on(lab, RuntimeDevice("sm_90", 114, "NVIDIA H100 PCIe", 0), policy) == out


def test_a_time_against_another_candidate_than_the_control_admits_nothing(lab: Any) -> None:
    put(lab, control="staged")
    assert table(lab) == [("strided", "invalid", None, True)]


def test_a_record_of_another_family_is_of_another_workload(lab: Any) -> None:
    files = [RecordFile("a.json", made(lab, family="linear_all_reduce"))]
    workloads = lab.plan.workloads
    assert [table_records(w, files, current_sources(workloads)) for w in workloads] == [[], [], []]


def test_an_inconsistent_record_stops_the_generator(lab: Any) -> None:
    path = put(lab, 1.25)
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(document | {"verdict": "admitted", "gain": 0.25}), encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        lab.plan  # noqa: B018
    lines = str(caught.value).splitlines()
    name = path.relative_to(ledger(lab)).as_posix()
    assert [line.split(": ")[:2] for line in lines] == [[name, "verdict"], [name, "gain"], [name, "sha256"]]
    assert 'the record states "admitted", but its samples give "rejected"' in lines[0]
    path.write_text(json.dumps(document), encoding="utf-8")
    assert table(lab) == [("strided", "rejected", -0.25, True)]
