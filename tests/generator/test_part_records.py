"""Records of a part of an interval: they enter the table with it, and count for calls in that part alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from harness.blocks import in_blocks
from harness.paths import MINIATURE
from harness.workspaces import load_module
from kernwright.generator.generate import Generation, plan_generation, write_generation
from kernwright.generator.records import current_sources
from kernwright.ledger import (
    Exactness,
    Group,
    Record,
    RecordedDevice,
    RecordedPart,
    Timing,
    Toolkit,
    make_record,
    write_record,
)
from kernwright.runtime import Device as RuntimeDevice
from kernwright.specs import find_workspace

LABEL = "bf16-w56-b4to2048-tp2"
TAGGED = RecordedPart(field="payload_bytes", low=4, high=511, at=32)
EXACT = Exactness(cases=30, values=4096, mismatches=0, against="array oracle")
WRONG = Exactness(cases=30, values=4096, mismatches=2, against="array oracle", first="outputs[3]")
HERE = RuntimeDevice("sm_90", 132, "NVIDIA H200")


class Ranks:
    """A communicator that owns every channel."""

    rank, world_size, layout_version = 0, 2, 1
    capabilities = frozenset({"all_reduce_layout_3"})

    def owns(self, _channel: str) -> bool:
        return True


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    shutil.copytree(MINIATURE, tmp_path / "specs")
    (tmp_path / "kernwright.toml").write_text("", encoding="utf-8")
    return tmp_path


def planned(lab: Path) -> Generation:
    return plan_generation(find_workspace(lab))


def made(lab: Path, ratio: float | None = 0.8, **changes: Any) -> Record:
    current = current_sources(planned(lab).workloads)
    group = Group(control=(1.0, 1.0), candidate=(ratio or 1.0, ratio or 1.0))
    names = {"candidate": "narrow", "control": "tagged"} | changes
    facts: dict[str, Any] = {
        "measured_at": "2026-01-01T12:00:00Z",
        "family": "all_reduce",
        "spec": "mini",
        "workload": LABEL,
        "part": TAGGED,
        "device": RecordedDevice(arch="sm_90", sm_count=132, name="NVIDIA H200"),
        "toolkit": Toolkit(**dict.fromkeys(Toolkit.model_fields, "1.0")),
        "code_sha256": current["mini", LABEL, names["candidate"], "sm_90"],
        "control_code_sha256": current["mini", LABEL, names["control"], "sm_90"],
        "source_sha256": "0" * 64,
        "control_source_sha256": "0" * 64,
        "cubin_sha256": None,
        "machine_code_sha256": None,
        "exactness": EXACT,
        "timing": None
        if ratio is None
        else Timing(scope="chain", calls=20, replays=9, groups=in_blocks(group)),
    }
    return make_record(**(facts | names))


def dispatch_of(lab: Path) -> Any:
    write_generation(planned(lab))
    name = f"parts_{lab.name}".replace("-", "_")
    return load_module(name, lab / "generated" / "dispatch.py")


def decided(module: Any, size: int, device: RuntimeDevice = HERE) -> tuple[str, dict[str, str]]:
    fields = {"dtype": "bfloat16", "world_size": 2, "payload_bytes": size}
    found = module.DISPATCH.explain_request("all_reduce", fields, device, kind="staged", comm=Ranks())
    return found.chosen, {d.candidate: d.reason for d in found.decisions if d.workload == LABEL}


def put(lab: Path, *records: Record) -> Any:
    for record in records:
        write_record(lab / "ledger" / "records", record)
    return dispatch_of(lab)


def test_an_admitted_candidate_serves_its_part(lab: Path) -> None:
    module = put(lab, made(lab))
    (record,) = next(w for w in module.TABLE.workloads if w.label == LABEL).records
    assert (record.part, record.candidate, record.verdict) == ((4, 511), "narrow", "admitted")
    for size in (4, 400, 510):
        chosen, reasons = decided(module, size)
        assert (chosen, reasons["narrow"]) == (
            "narrow",
            "chosen: admitted on sm_90, 132 SMs, NVIDIA H200 with a gain of 20.0% over the control",
        )
    assert decided(module, 512)[0] == "one"
    assert decided(module, 400, RuntimeDevice("sm_90", 132, "NVIDIA H100"))[0] == "tagged"


def test_where_the_thresholds_moved_the_record_speaks_of_another_part(lab: Path) -> None:
    put(lab, made(lab))
    spec = lab / "specs" / "mini.toml"
    spec.write_text(spec.read_text().replace("one_stage = 512", "one_stage = 520"))
    chosen, reasons = decided(dispatch_of(lab), 400)
    assert chosen == "tagged"
    assert reasons["narrow"] == (
        "its record on sm_90, 132 SMs, NVIDIA H200 covers 4 to 511, another part; policy measured dispatches "
        "admitted candidates only"
    )


def test_a_record_of_the_whole_interval_says_nothing_of_a_part(lab: Path) -> None:
    chosen, reasons = decided(put(lab, made(lab, part=None)), 400)
    assert chosen == "tagged"
    assert reasons["narrow"].startswith("no record on sm_90, 132 SMs, NVIDIA H200 for this source")


def test_a_failure_in_one_part_is_one_in_all(lab: Path) -> None:
    """The same source has the same bits everywhere."""
    other = RecordedPart(field="payload_bytes", low=4, high=99, at=32)
    module = put(lab, made(lab), made(lab, ratio=None, exactness=WRONG, part=other))
    chosen, reasons = decided(module, 400)
    assert chosen == "tagged"
    assert reasons["narrow"] == "this source failed exactness on sm_90, 132 SMs, NVIDIA H200"


def test_the_control_of_a_part_is_no_replaced_control(lab: Path) -> None:
    """`two` isn't the first candidate of the file, but the first of its route; `one` never was `two_narrow`'s."""
    part = RecordedPart(field="payload_bytes", low=1024, high=2048, at=1024)
    module = put(
        lab,
        made(lab, candidate="two_narrow", control="two", part=part),
        made(lab, candidate="narrow", control="one"),
    )
    records = next(w for w in module.TABLE.workloads if w.label == LABEL).records
    assert {(r.candidate, r.verdict) for r in records} == {("two_narrow", "admitted"), ("narrow", "invalid")}
    assert decided(module, 2000)[0] == "two_narrow"
    assert decided(module, 400)[0] == "tagged"


def test_the_controls_record_shows_that_its_part_is_verified(lab: Path) -> None:
    module = put(lab, made(lab, ratio=None, candidate="tagged", control="tagged"))
    assert "verified for this source on sm_90, 132 SMs, NVIDIA H200" in decided(module, 400)[1]["tagged"]
    assert "unverified" in decided(module, 600)[1]["one"]
