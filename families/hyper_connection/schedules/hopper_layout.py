"""How a boundary with prefetched weights is laid onto CTAs, warps and registers: pure arithmetic.

Validation and the generator both use it, so that what was accepted is what gets generated. In down a CTA
takes some rows over the columns of one branch, and the thread that normalises a chunk multiplies it; in up
a CTA takes some hidden coordinates of all branches, and a warp some of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ....specs.errors import listing
from ....specs.tiling import MAX_THREADS, TilingError
from ....table import WARP
from ..workload import HyperConnectionWorkload

CHUNK = 8
"""Elements of a thread's chunk in norm and down: one word of 16 bytes."""
EXTRA_WARPS = 2
"""One finishes rows, one issues the copies."""
ROWS_LIMIT = 32
"""Rows that a warp sums at once: one a lane, when the sums are done."""
PREFERRED_ROWS = 12
"""Rows that a thread has in registers unless told otherwise: more spill where two CTAs share an SM."""
PREFERRED_CONVERTED = 3
PREFERRED_CHUNKS = 20
"""Rows of down, and chunks of up, that are converted early unless told otherwise: what fits beside the others."""
SM_SHARED = 228 * 1024
RESERVED = 1024
"""Bytes of shared memory that the driver keeps of every CTA's."""
STAGING_ALIGNMENT = 128
"""Bytes; of the dynamic shared memory, so that the static one in front of it is a multiple of it."""
UP_CHUNKS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class DownLayout:
    """Combine, norm and down."""

    ctas: int
    ctas_per_branch: int
    lanes: int
    """Of the trees of norm and down; so many threads are a team."""
    chunk: int
    groups: int
    """Warps of a team."""
    teams: int
    """Teams share the rows of a CTA."""
    rows_per_cta: int
    rows_at_once: int
    """Rows that a thread multiplies at once."""
    passes: int
    converted: int
    """Of those rows, how many are converted to FP32 before the wait."""
    stored_chunks: int
    """Chunks of x that a CTA of a branch stores."""

    @property
    def warps(self) -> int:
        """Warps that compute."""
        return self.teams * self.groups


@dataclass(frozen=True, slots=True)
class UpLayout:
    """Up and mix."""

    ctas: int
    warps: int
    """Warps that compute."""
    chunk: int
    steps: int
    """Chunks that a lane has of a row."""
    columns_per_cta: int
    columns_per_warp: int
    columns_at_once: int
    """Hidden coordinates, each with all its branches, that a warp multiplies at once."""
    passes: int
    converted: int
    """Of a lane's chunks of those rows, how many are converted to FP32 before the low rank is known."""
    copies: int
    """Bulk copies of a branch's rows."""


def unsuited(workload: HyperConnectionWorkload, route: str) -> Iterator[str]:
    """Say in sentences why a workload doesn't fit the layout."""
    trees, branches, hidden = workload.trees(), workload.branches, workload.hidden
    if (workload.tokens.min, workload.tokens.max) != (1, 1):
        yield f'route "{route}" serves tokens = 1 alone; tokens is {workload.tokens.min} to {workload.tokens.max}.'
    norm, down, up = trees["norm"], trees["down"], trees["up"]
    lanes = norm.lanes
    fits = norm.segments == 1 and norm.chunk == CHUNK and lanes % WARP == 0 and lanes * CHUNK == hidden
    if not fits or (down.segments, down.lanes, down.chunk) != (branches, lanes, CHUNK):
        yield (
            f'route "{route}" gives every thread one chunk of 8 elements, to normalise and to multiply: it needs '
            f"norm = [1, L, 8] and down = [branches, L, 8] with L = hidden / 8 a multiple of 32; found norm {norm}, "
            f"down {down} with branches {branches} and hidden {hidden}."
        )
    if up.segments != 1 or up.lanes != WARP or up.chunk not in UP_CHUNKS:
        yield (
            f'route "{route}" sums a row of up in one warp: it needs up = [1, 32, chunk] with a chunk of '
            f"{listing(UP_CHUNKS, 'or')}; found {up}."
        )
    elif workload.low_rank % (WARP * up.chunk):
        yield (
            f'route "{route}" gives every lane as much of a row of up: it needs a low_rank that {WARP * up.chunk} '
            f"divides, 32 lanes x chunk {up.chunk}; low_rank is {workload.low_rank}."
        )


def down_layout(
    workload: HyperConnectionWorkload,
    *,
    ctas: int,
    threads: int | None,
    rows_per_cta: int | None,
    rows_at_once: int | None,
    converted: int | None,
) -> DownLayout:
    """Resolve the options of combine, norm and down; None is the default.

    Raises:
        TilingError: an option doesn't fit the workload or the other options.
    """
    branches, lanes = workload.branches, workload.hidden // CHUNK
    if ctas % branches:
        raise TilingError("ctas", f"ctas is {ctas}; a CTA serves one branch, so {branches} must divide it.")
    extra = EXTRA_WARPS * WARP
    threads = lanes + extra if threads is None else threads
    teams = (threads - extra) // lanes
    if teams < 1 or teams * lanes + extra != threads or threads > MAX_THREADS:
        allowed = [
            n * lanes + extra for n in range(1, MAX_THREADS // lanes + 1) if n * lanes + extra <= MAX_THREADS
        ]
        if not allowed:
            raise TilingError(
                "threads",
                f"a team has {lanes} threads, one for each lane, and two warps come on top: "
                f"that is more than the {MAX_THREADS} that a CTA may have.",
            )
        raise TilingError(
            "threads",
            f"threads is {threads}; teams of {lanes}, one thread for each lane of the norm's tree, and two warps on "
            f"top make {listing(allowed, 'or')}.",
        )
    ctas_per_branch = ctas // branches
    needed = -(-workload.down_rows // ctas_per_branch)
    rows_per_cta = -(-needed // teams) * teams if rows_per_cta is None else rows_per_cta
    if rows_per_cta < needed or rows_per_cta % teams:
        raise TilingError(
            "rows_per_cta",
            f"rows_per_cta is {rows_per_cta}; {workload.down_rows} rows over {ctas_per_branch} CTAs of a branch need "
            f"at least {needed}, and a multiple of {teams}, the teams of a CTA.",
        )
    rows_at_once = _at_once("rows_at_once", rows_at_once, rows_per_cta // teams, "rows", 1)
    return DownLayout(
        ctas=ctas,
        ctas_per_branch=ctas_per_branch,
        lanes=lanes,
        chunk=CHUNK,
        groups=lanes // WARP,
        teams=teams,
        rows_per_cta=rows_per_cta,
        rows_at_once=rows_at_once,
        passes=rows_per_cta // teams // rows_at_once,
        converted=_converted(
            converted, PREFERRED_CONVERTED, rows_at_once, "rows that a thread multiplies at once"
        ),
        stored_chunks=-(-lanes // ctas_per_branch),
    )


def up_layout(
    workload: HyperConnectionWorkload,
    *,
    ctas: int,
    warps: int,
    columns_per_cta: int | None,
    columns_at_once: int | None,
    converted: int | None,
    copies: int | None,
) -> UpLayout:
    """Resolve the options of up and mix; None is the default.

    Args:
        ctas: how many there are at most.

    Raises:
        TilingError: an option doesn't fit the workload or the other options.
    """
    hidden, tree = workload.hidden, workload.trees()["up"]
    least = -(-hidden // ctas)
    legal = [n for n in range(warps, hidden + 1, warps) if hidden % n == 0 and n >= least]
    if columns_per_cta is None and legal:
        columns_per_cta = legal[0]
    if columns_per_cta not in legal:
        limits = f"{warps}, the warps that compute, and at least {least} for {ctas} CTAs"
        found = (
            "there is no such number" if columns_per_cta is None else f"columns_per_cta is {columns_per_cta}"
        )
        raise TilingError(
            "columns_per_cta",
            f"{found}; it must divide hidden, {hidden}, and be a multiple of {limits}"
            f"{': ' + listing(legal[:6], 'or') if legal else ''}.",
        )
    per_warp = columns_per_cta // warps
    columns_at_once = _at_once(
        "columns_at_once", columns_at_once, per_warp, "hidden coordinates", workload.branches
    )
    steps = workload.low_rank // (WARP * tree.chunk)
    copies = (2 if columns_per_cta % 2 == 0 else 1) if copies is None else copies
    if columns_per_cta % copies:
        raise TilingError("copies", f"copies is {copies}; it must divide columns_per_cta, {columns_per_cta}.")
    return UpLayout(
        ctas=hidden // columns_per_cta,
        warps=warps,
        chunk=tree.chunk,
        steps=steps,
        columns_per_cta=columns_per_cta,
        columns_per_warp=per_warp,
        columns_at_once=columns_at_once,
        passes=per_warp // columns_at_once,
        converted=_converted(
            converted,
            PREFERRED_CHUNKS,
            steps * columns_at_once * workload.branches,
            "chunks that a lane multiplies at once",
        ),
        copies=copies,
    )


def _at_once(option: str, wanted: int | None, total: int, what: str, rows_each: int) -> int:
    """How many are in registers at the same time; each is `rows_each` rows."""
    legal = [n for n in range(1, total + 1) if total % n == 0 and n * rows_each <= ROWS_LIMIT]
    if not legal:
        raise TilingError(
            option, f"{rows_each} branches are more rows than the {ROWS_LIMIT} that a warp sums at once."
        )
    if wanted is None:
        return max((n for n in legal if n * rows_each <= PREFERRED_ROWS), default=legal[0])
    if wanted not in legal:
        raise TilingError(
            option,
            f"{option} is {wanted}; it must divide the {total} {what} and make at most {ROWS_LIMIT} rows: "
            f"{listing(legal, 'or')}.",
        )
    return wanted


def _converted(wanted: int | None, preferred: int, limit: int, what: str) -> int:
    wanted = min(preferred, limit) if wanted is None else wanted
    if wanted > limit:
        raise TilingError("converted", f"converted is {wanted}; at most the {limit} {what} can be.")
    return wanted


@dataclass(frozen=True, slots=True)
class Staging:
    """Where a CTA's weights lie in its dynamic shared memory, as byte offsets, and what it needs in all."""

    down: int
    norm: int
    up: int
    dynamic_bytes: int
    static_bytes: int
    """Sums, the low rank, y, mbarriers, up to where the dynamic memory begins."""

    @property
    def ctas_per_sm(self) -> int:
        """CTAs that fit an SM, two at most: this boundary's, and the one that prefetches behind it."""
        return min(2, SM_SHARED // (self.dynamic_bytes + self.static_bytes + RESERVED))

    def problem(self) -> str | None:
        """Say in a sentence that not even one CTA fits; None if one does."""
        if self.ctas_per_sm:
            return None
        return (
            f"a CTA's weights take {self.dynamic_bytes} bytes of shared memory, and {self.static_bytes} come on top; "
            f"an SM has {SM_SHARED - RESERVED}: spread them over more CTAs."
        )


def staging(workload: HyperConnectionWorkload, down: DownLayout | None, up: UpLayout | None) -> Staging:
    """Lay out the shared memory of a kernel that has the phases that are given."""
    row = workload.hidden * 2
    down_bytes = down.rows_per_cta * row if down else 0
    norm_bytes = row if down else 0
    up_bytes = workload.branches * up.columns_per_cta * workload.low_rank * 2 if up else 0
    static = _static_bytes(workload, down, up)
    return Staging(0, down_bytes, down_bytes + norm_bytes, down_bytes + norm_bytes + up_bytes, static)


def _static_bytes(workload: HyperConnectionWorkload, down: DownLayout | None, up: UpLayout | None) -> int:
    """What the templates' struct `Shared` takes, with the words that only some schedules have."""
    word, arrival = 4, 8
    words = 0
    if down:  # squares and partial sums, and a sink
        words += (down.teams + down.rows_per_cta) * down.groups + 1
    if up:  # the low rank, and a sink
        words += workload.low_rank + 1
    arrivals = 1
    if down and up:  # y, the scale, the call
        words += workload.branches * up.columns_per_cta + 1 + 2
        arrivals = 2
    bytes_ = (
        _round_up(words * word, arrival) + arrivals * arrival + word
    )  # in the end: the grid in front has ended
    return _round_up(bytes_, STAGING_ALIGNMENT)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
