"""All-reduce schedules: from a candidate to kernels, launch geometry and the channel's layout in the text.

The arguments of a kernel, by name: `channels`, `inputs`, `addends` and `outputs` are structs of one pointer a
rank, passed by value; `numel`, `input_slot` and `rank_base` are 32-bit, `timeout_ns` is a 64-bit unsigned integer.
The grid is that of one rank; ranks that share a launch lie along its y axis, `rank_base` being the first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ...generator.lowering import Lowering
from ...specs import CandidateSpec, Spec, WorkloadSpec
from ...table import DISAGREEMENT, ITEM_BYTES, OVERLAP, Launch, Part
from .spec import AllReduceSpec, AllReduceWorkload, ChannelLayout, Collective
from .threshold import ROUTES as ROUTES
from .workload import BARRIERS, CHANNEL_CTAS, LAYOUT_VERSION

WORD_TYPE = {4: "unsigned int", 8: "uint2", 16: "uint4"}
"""Type of a word of payload, by its bytes."""
POISON = {
    4: "0xffffffffu",
    8: "{0xffffffffu, 0xffffffffu}",
    16: "{0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}",
}
"""All bits set: NaN in every dtype."""
TAGGED_TYPE = {8: "unsigned long long", 16: "uint4"}
"""Type of a word of data and epochs, by its bytes."""

ARGUMENTS = {
    "symmetric": ("channels", "outputs", "numel", "input_slot", "rank_base", "timeout_ns"),
    "staged": ("channels", "inputs", "outputs", "numel", "rank_base", "timeout_ns"),
    "sum2": ("channels", "inputs", "addends", "outputs", "numel", "rank_base", "timeout_ns"),
}
"""Parameters of the kernels, by operation."""

UNIT = "bytes"
WAITS = {0: "the start of the call", 1: "the second barrier", 2: "a packet"}
"""Barriers by their number (`barrier.cuh.j2`), and `PACKET_WAIT` of `tagged_words.cu.j2`."""

FUNCTIONS = {
    "acquire_outputs": "acquire_outputs",
    "all_reduce_symmetric": "symmetric",
    "all_reduce_sum2": "sum2",
}
"""Functions of the dispatch module beside `all_reduce` itself, by the op's methods."""


def parts(spec: Spec, workload: WorkloadSpec) -> tuple[Part, ...]:
    """How the spec's thresholds split the payloads of a workload, on every device that has an entry."""
    assert isinstance(spec, AllReduceSpec)
    assert isinstance(workload, AllReduceWorkload)
    return tuple(
        part
        for entry in spec.threshold
        if entry.holds_for(workload)
        for part in entry.parts(workload.payload_bytes)
    )


def multiple(workload: WorkloadSpec) -> int:
    """Payloads are whole elements."""
    return ITEM_BYTES[workload.dtype]


def meeting_constants(
    workload: WorkloadSpec, candidate: CandidateSpec, operations: Iterable[str]
) -> dict[str, Any]:
    """What `call.cuh.j2` and `barrier.cuh.j2` need; `digests` tell the operations of all candidates apart."""
    what = [workload.family, *(str(workload.fields()[name]) for name in ("dtype", "world_size"))]
    text = json.dumps([*what, candidate.schedule()], sort_keys=True)

    def digest(operation: str) -> str:
        return f"0x{hashlib.sha256(f'{operation} {text}'.encode()).hexdigest()[:8]}u"

    return {
        "digests": {operation: digest(operation) for operation in operations},
        "flag_type": "unsigned long long",
        "barriers": BARRIERS,
        "overlap": OVERLAP,
        "disagreement": DISAGREEMENT,
        "layout_version": LAYOUT_VERSION,
        "channel_ctas": CHANNEL_CTAS,
    }


def lower(workload: WorkloadSpec, candidate: CandidateSpec) -> Lowering:
    """Lower a candidate of an all-reduce workload; every route has templates, and every operation is one launch."""
    assert isinstance(workload, AllReduceWorkload)
    assert isinstance(candidate, Collective)
    word_bytes = candidate.payload_word_bytes()
    layout = asdict(ChannelLayout.of(workload))
    pointers = f"pointers[{workload.world_size}]"
    constants: dict[str, Any] = {
        **meeting_constants(workload, candidate, ARGUMENTS),
        "dtype": workload.dtype,
        "world_size": workload.world_size,
        "ctas": candidate.ctas,
        "threads": candidate.threads,
        "word_bytes": word_bytes,
        "words_at_once": candidate.loads_in_flight,
        "sums_at_once": max(1, candidate.loads_in_flight // workload.world_size),
        "word_type": WORD_TYPE[word_bytes],
        "poison": POISON[word_bytes],
        "tagged_type": TAGGED_TYPE[candidate.word_bytes],
        "layout": layout,
    }
    return Lowering(
        template=f"all_reduce/{candidate.route}.cu.j2",
        constants=constants,
        kernels={
            operation: Launch(
                grid=(candidate.ctas, 1, 1), block=(candidate.threads, 1, 1), args=args, resident=True
            )
            for operation, args in ARGUMENTS.items()
        },
        steps={operation: (operation,) for operation in ARGUMENTS},
        capabilities=(f"all_reduce_layout_{LAYOUT_VERSION}",),
        arguments={
            **dict.fromkeys(("channels", "inputs", "addends", "outputs"), pointers),
            **dict.fromkeys(("numel", "input_slot", "rank_base"), "uint32"),
            "timeout_ns": "uint64",
        },
        channel=layout,
    )
