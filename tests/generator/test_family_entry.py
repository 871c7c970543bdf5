"""What the dispatch table states of a family comes from its module `lowering`."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kernwright.families.hyper_connection.channel_layout import HyperConnectionChannel
from kernwright.families.hyper_connection.lowering import WAITS
from kernwright.families.hyper_connection.workload import HyperConnectionWorkload
from kernwright.generated.dispatch import TABLE
from kernwright.generator import Lowering, ScheduleError
from kernwright.generator.lowering import family_entry
from kernwright.table import CTA_FIELDS, DISAGREEMENT, ITEM_BYTES, OVERLAP, CtaRecord, FamilyEntry

LOWERINGS = [
    Lowering("", {}, {}, {"first": (), "second": ()}),
    Lowering("", {}, {}, {"second": (), "third": ()}),
]


def test_a_family_that_states_nothing_has_the_kinds_of_its_candidates() -> None:
    entry = family_entry("mine", SimpleNamespace(), LOWERINGS)
    assert entry == FamilyEntry("mine", kinds=("first", "second", "third"))
    assert entry.cta_record == CtaRecord(CTA_FIELDS, "another CTA")


def test_constants_enter() -> None:
    module = SimpleNamespace(UNIT="bytes", ROUTES=("a", "b"), WAITS={8: "a flag"}, CTA_RECORD=CtaRecord())
    entry = family_entry("mine", module, [])
    assert (entry.unit, entry.routes, entry.waits) == ("bytes", ("a", "b"), {8: "a flag"})


@pytest.mark.parametrize(
    ("number", "meaning"),
    [(OVERLAP, "two calls met on the channel"), (DISAGREEMENT, "a peer has made another call")],
)
def test_a_wait_with_a_number_that_is_taken(number: int, meaning: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        family_entry("mine", SimpleNamespace(WAITS={number: "a flag"}), [])
    assert str(caught.value) == (
        f'family mine calls wait {number} "a flag", but in an error record this number says that {meaning}; take '
        "another number"
    )


def test_the_library_states_all_of_its_families() -> None:
    entries = {entry.name: entry for entry in TABLE.families}
    assert set(entries) == {work.family for work in TABLE.workloads}
    for work in TABLE.workloads:
        entry = entries[work.family]
        assert entry.unit
        assert set(entry.kinds) >= {kind for candidate in work.candidates for kind in candidate.steps}
        assert {part.route for part in work.parts} <= set(entry.routes)
        assert set(CTA_FIELDS) <= set(entry.cta_record.fields)
        words = dict.fromkeys(entry.cta_record.fields, 1)
        assert "{" not in entry.cta_record.awaited.format(**words)
        for candidate in work.candidates:
            assert candidate.scratch_by in ("", work.interval)
            assert not candidate.scratch_by or candidate.scratch_by in candidate.arguments
            if "record" in candidate.state:
                (words_there,), dtype = candidate.state["record"]
                assert dtype == "int32"
                assert words_there >= len(entry.cta_record.fields)
    assert {work.multiple for work in TABLE.workloads if work.interval != "payload_bytes"} == {1}
    for work in TABLE.workloads:
        if work.interval == "payload_bytes":
            assert work.multiple == ITEM_BYTES[str(work.fields["dtype"])]


def test_every_exchange_of_a_boundary_has_a_name() -> None:
    shape = {"dtype": "float16", "branches": 4, "hidden": 64, "low_rank": 32, "world_size": 4}
    layout = HyperConnectionChannel.of(HyperConnectionWorkload.model_validate(shape))
    assert {exchange.number for exchange in layout.exchanges} == set(WAITS)
