"""Schedules of row-parallel linears: kernels of ours beside a library's GEMM, the channel, and how rows are cut.

The arguments of a kernel, by name: `channels` is a struct of one pointer a rank, passed by value; `rank_base` is
this rank, `numel` and `rows` are 32-bit, `at`, `begin_at`, `stride` and `timeout_ns` 64-bit; all others are pointers.
`at` counts bytes from the beginning of the partial sums, `begin_at` elements of the result, `stride` elements of what
was fetched.
"""

from __future__ import annotations

from typing import Any

from ...generator.literals import float_literal
from ...generator.lowering import Lowering
from ...specs import CandidateSpec, WorkloadSpec
from ...table import Launch, laid_out
from ..all_reduce.lowering import POISON, WORD_TYPE, meeting_constants
from ..all_reduce.workload import WORD, meeting_parts
from .spec import MAX_SLICES, MAX_THREADS, WARP, Grid, Linear, Pulling, SlicedCopyEngine
from .workload import ELEMENT, QUANTISE_STEPS, LinearAllReduceWorkload

QUANTISE_CTAS = 1056
"""Eight a multiprocessor of an H200; they stride over the rows."""
LEAST_SCALE = 1 / (448 * 512)
CAPABILITY = "linear_all_reduce_layout_2"
"""Names `channel_layout`; ranks whose layouts differ can't talk."""
ARGUMENTS = {
    "channels": "pointers[{}]",
    "numel": "uint32",
    "rows": "uint32",
    "rank_base": "uint32",
    "at": "uint64",
    "begin_at": "uint64",
    "stride": "uint64",
    "timeout_ns": "uint64",
}
"""Arguments that aren't a pointer to a tensor; the ranks' number in braces."""

UNIT = "rows"
WAITS = {0: "the start of the call", 1: "the second barrier"}
"""Barriers by their number, as in `all_reduce`."""

PEERS = {"reduce": "reduce", "add": "copies"}
"""The text that talks to peers, by one of its kernels."""
PURPOSE = {
    "serial": "The plain linear, then the group's own all-reduce.",
    "serial_sm": "The plain linear into memory that peers read, then an all-reduce in two stages on the same stream.",
    "sliced_nccl": "Slices of rows: the group's all-reduce of one runs beside the GEMM of the next.",
    "sliced_sm": "Slices of rows: a two-stage all-reduce of one, on a few SMs, runs beside the GEMM of the next.",
    "sliced_copy_engine": "Slices of rows: copy engines fetch one from the peers beside the GEMM of the next.",
}


def channel_layout(workload: LinearAllReduceWorkload) -> dict[str, int]:
    """Where the parts of a rank's channel begin, and its `size`, bytes; candidates share it."""
    payload = workload.channel_rows * workload.width * ELEMENT
    parts = {
        **meeting_parts(workload.world_size),
        "scratch": (-(-payload // workload.world_size) // WORD + 1)
        * WORD,  # a rank's part of a sum in two stages
        # What its GEMM contributes, [channel_rows, N]; every slice begins at a whole word. Peers read both.
        "partials": payload + MAX_SLICES * WORD,
    }
    offsets, size = laid_out(parts)
    return {**offsets, "size": size}


def lower(workload: WorkloadSpec, candidate: CandidateSpec) -> Lowering:
    """Lower a candidate of a row-parallel linear; what multiplies is a library, so some have no kernel of ours.

    Raises:
        ScheduleError: rows too long to be quantised.
    """
    assert isinstance(workload, LinearAllReduceWorkload)
    assert isinstance(candidate, Linear)
    kernels: dict[str, Launch] = {}
    constants: dict[str, Any] = {
        "dtype": workload.dtype,
        "purpose": PURPOSE[candidate.route],
        "quantised": workload.quantisation != "none",
        "peers": next((text for kernel, text in PEERS.items() if kernel in candidate.kernels()), ""),
    }
    if workload.quantisation != "none":
        constants |= _quantisation(workload)
        kernels["quantise"] = Launch(
            grid=(QUANTISE_CTAS, 1, 1),
            block=(constants["row_threads"], 1, 1),
            args=("x", "codes", "scales", "rows"),
        )
    options: dict[str, Any] = {name: value for name, value in candidate.schedule().items() if name != "route"}
    capabilities: tuple[str, ...] = ()
    layout = channel_layout(workload)
    if isinstance(candidate, Grid):
        constants |= _exchange(workload, candidate, layout)
        kernels |= _peer_kernels(candidate)
        options |= {"partials_at": layout["partials"], "channel_rows": workload.channel_rows}
        capabilities = (CAPABILITY,)
    return Lowering(
        template="linear_all_reduce/linear.cu.j2",
        constants=constants,
        kernels=kernels,
        steps={"linear": tuple(kernels)},
        options=options,
        arguments={
            name: kind.format(workload.world_size)
            for name, kind in ARGUMENTS.items()
            if any(name in kernel.args for kernel in kernels.values())
        },
        capabilities=capabilities,
        # Hundreds of megabytes, for nothing unless a record admits a schedule that uses them.
        channel={**layout, "on_request": 1} if workload.channel_rows else {},
    )


def _quantisation(workload: LinearAllReduceWorkload) -> dict[str, Any]:
    words = workload.k * ELEMENT // WORD
    threads = min(MAX_THREADS, -(-words // (WARP * QUANTISE_STEPS)) * WARP)
    steps = -(-words // threads)
    return {
        "k": workload.k,
        "row_words": words,
        "row_threads": threads,
        "row_steps": steps,
        "row_warps": threads // WARP,
        "least_scale": float_literal(LEAST_SCALE),
        "nonfinite": workload.nonfinite,
    }


def _exchange(workload: LinearAllReduceWorkload, candidate: Grid, layout: dict[str, int]) -> dict[str, Any]:
    meeting = (1, WARP) if isinstance(candidate, SlicedCopyEngine) else (candidate.ctas, candidate.threads)
    at_once = candidate.loads_in_flight if isinstance(candidate, Pulling) else 1
    return {
        **meeting_constants(workload, candidate, _peer_kernels(candidate)),
        "words_at_once": at_once,
        "sums_at_once": max(1, at_once // workload.world_size),
        "world_size": workload.world_size,
        "meeting_ctas": meeting[0],
        "meeting_threads": meeting[1],
        "add_ctas": candidate.ctas,
        "add_threads": candidate.threads,
        "stages": candidate.stages if isinstance(candidate, SlicedCopyEngine) else 2,
        "word_bytes": WORD,
        "word_type": WORD_TYPE[WORD],
        "poison": POISON[WORD],
        "layout": layout,
    }


def _peer_kernels(candidate: Grid) -> dict[str, Launch]:
    grid, block = (candidate.ctas, 1, 1), (candidate.threads, 1, 1)
    if not isinstance(candidate, SlicedCopyEngine):
        args = ("channels", "at", "result", "begin_at", "numel", "rank_base", "timeout_ns")
        return {"reduce": Launch(grid=grid, block=block, args=args, resident=True)}
    one, warp = (1, 1, 1), (WARP, 1, 1)
    return {
        "meet": Launch(one, warp, ("channels", "at", "numel", "rank_base", "timeout_ns"), resident=True),
        "add": Launch(
            grid, block, ("channels", "at", "fetched", "stride", "result", "begin_at", "numel", "rank_base")
        ),
        "close": Launch(one, warp, ("channels", "result", "numel", "rank_base", "timeout_ns"), resident=True),
    }
