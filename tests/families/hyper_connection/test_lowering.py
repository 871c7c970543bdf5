"""Launch geometry and index arithmetic, simulated from the constants in the generated text.

Every row is finished exactly once, every element of a row is taken exactly once and by the lane that the
reduction tree names (docs/numerics.md#reduction-trees), whatever the tree, the shape and the schedule.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import product
from types import CodeType
from typing import Any

from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from kernwright.families.hyper_connection.schedules.limits import STATIC_SHARED_LIMIT
from kernwright.families.hyper_connection.spec import HyperConnectionSpec
from kernwright.generator.environment import TEMPLATES, make_environment
from kernwright.generator.sources import GeneratedCandidate, generate_workloads
from kernwright.specs import SpecFile, families, find_workspace
from kernwright.table import Launch
from pydantic import ValidationError

WORKSPACE = find_workspace(TEMPLATES)
FAMILIES = families(WORKSPACE)
ENVIRONMENT = make_environment(WORKSPACE, FAMILIES)
LANES = (1, 2, 4, 8, 16, 32, 64, 96, 160, 320)


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


@st.composite
def trees(draw: st.DrawFn, length: int) -> list[int]:
    segments = draw(st.sampled_from([n for n in divisors(length) if n <= 8]))
    chunk = draw(st.sampled_from([n for n in divisors(length // segments) if n <= 16]))
    return [segments, draw(st.sampled_from(LANES)), chunk]


@st.composite
def matrix_options(draw: st.DrawFn, tree: list[int]) -> dict[str, int]:
    lanes = tree[1]
    legal = [n for n in (32, 64, 96, 128, 256, 320) if lanes < 32 or lanes % n == 0 or n % lanes == 0]
    threads = draw(st.sampled_from(legal))
    teams = threads // min(threads, lanes)
    options = {
        "threads": threads,
        "rows_per_cta": teams * draw(st.sampled_from([1, 2, 3, 33, 40])),
        "ctas": draw(st.sampled_from([None, None, 1, 2])),
        "load_bytes": draw(st.sampled_from([None, None, 2, 16])),
    }
    return {name: value for name, value in options.items() if value is not None}


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    branches = draw(st.integers(2, 8))
    hidden = draw(st.sampled_from([8, 45, 72, 96, 320, 640]))
    low_rank = draw(st.sampled_from([2, 9, 24, 64, 320]))
    norm, down, up = draw(trees(hidden)), draw(trees(branches * hidden)), draw(trees(low_rank))
    return {
        "family": "hyper_connection",
        "name": "odd",
        "workload": {
            "dtype": draw(st.sampled_from(["float16", "bfloat16"])),
            "branches": branches,
            "hidden": hidden,
            "low_rank": low_rank,
            "norm_weight": draw(st.sampled_from(["shared", "per_branch"])),
            "tree": {"norm": norm, "down": down, "up": up},
        },
        "candidate": [
            {
                "name": "odd",
                "arch": ["sm_90"],
                "route": "replicated",
                "early_norm_weight": draw(st.booleans()),
                "down": draw(matrix_options(down)),
                "up_mix": draw(matrix_options(up)),
            }
        ],
    }


LOOPS = ("GROUPS", "PASSES", "ROWS_PER_TEAM", "SEGMENTS", "STEPS")
"""A text has no loop over one step, and then doesn't state how many there are."""


class Kernel:
    """One kernel's constants and index formulas, as its text states them."""

    def __init__(self, text: str, symbol: str, launch: Launch, lanes: int, *namespaces: str) -> None:
        self.constants: dict[str, int] = {}
        for namespace in namespaces:
            (body,) = re.findall(rf"namespace {namespace} {{\n(.*?)}}  // namespace", text, re.DOTALL)
            for statement in re.findall(r"constexpr int (.*?);", body):
                for definition in statement.split(", "):
                    name, value = definition.split(" = ")
                    assert name not in self.constants
                    self.constants[name] = int(value)
        assert self.constants.setdefault("LANES", lanes) == lanes
        start = text.index(f"\n{symbol}(")
        self.body = text[start : text.index("\n}\n", start)]
        self.grid, self.block = launch.grid[0], launch.block[0]
        assert launch.grid[1:] == launch.block[1:] == (1, 1)

    def __getattr__(self, name: str) -> int:
        """A constant; where the text leaves it out, what the loops that are left out imply."""
        if name in self.constants:
            return self.constants[name]
        if name == "TEAMS":
            return self.block // self.TEAM
        if name in LOOPS:
            return 1
        raise AttributeError(name)

    def has(self, name: str) -> bool:
        return name in self.constants

    def tiles(self, cta: int) -> range:
        return range(cta, self.TILES, self.grid) if self.has("TILES") else range(cta, cta + 1)

    def formulas(self, pattern: str) -> list[CodeType]:
        """All different formulas that the text has in a place, as Python."""
        found = sorted(set(re.findall(pattern, self.body)))
        changes = {"threadIdx.x": "thread", "pass": "part", " / ": " // "}
        for old, new in changes.items():
            found = [formula.replace(old, new) for formula in found]
        return [compile(formula, pattern, "eval") for formula in found]

    def value(self, formula: CodeType, **variables: int) -> int:
        return int(eval(formula, {}, self.constants | variables))


def partition(kernel: Kernel, length: int) -> None:
    """A team's lanes take every element once, in chunks, as the tree says."""
    (start_at,) = kernel.formulas(r"int k = (.*?);")
    guards = kernel.formulas(r"if \((.*?) < CHUNKS\)")
    assert kernel.has("CHUNKS") == bool(guards)
    taken: dict[int, tuple[int, int]] = {}
    places = product(range(kernel.SEGMENTS), range(kernel.STEPS), range(kernel.PASSES), range(kernel.TEAM))
    for segment, step, part, member in places:
        at = {"segment": segment, "step": step, "part": part, "member": member}
        if any(kernel.value(guard, **at) >= kernel.CHUNKS for guard in guards):
            continue
        start = kernel.value(start_at, **at)
        for k in range(start, start + kernel.CHUNK):
            assert k not in taken
            taken[k] = (segment, part * kernel.TEAM + member)
    segment_length = length // kernel.SEGMENTS
    assert taken == {
        k: (k // segment_length, (k % segment_length) // kernel.CHUNK % kernel.LANES) for k in range(length)
    }
    for group_at in kernel.formulas(r"partial\[.*\]\[([^]]*)\] ="):
        groups = Counter(
            kernel.value(group_at, part=part, member=member)
            for part in range(kernel.PASSES)
            for member in range(0, kernel.TEAM, kernel.GROUP)
        )
        assert groups == Counter(range(kernel.GROUPS))


def rows_by_teams(kernel: Kernel, name: str) -> Iterator[Counter[int]]:
    """Rows of the teams: what `up_mix`, and `down` where a row is one group, read, sum up and store."""
    formulas = [f for f in kernel.formulas(rf"int {name} = (.*?);") if "team" in f.co_names]
    assert formulas
    for row_at in formulas:
        yield Counter(
            kernel.value(row_at, tile=tile, i=i, team=team)
            for cta in range(kernel.grid)
            for tile in kernel.tiles(cta)
            for i in range(kernel.ROWS_PER_TEAM)
            for team in range(kernel.block // kernel.TEAM)
        )
    for slot_at in kernel.formulas(r"partial\[(i .*?)\]\["):
        for i, team in product(range(kernel.ROWS_PER_TEAM), range(kernel.TEAMS)):
            assert kernel.value(slot_at, i=i, team=team) == kernel.value(formulas[0], tile=0, i=i, team=team)


def rows_by_threads(kernel: Kernel) -> Iterator[Counter[int]]:
    """Rows that the threads of `down` finish where a row is several groups."""
    assert "if (threadIdx.x < ROWS_PER_CTA) {" in kernel.body
    for row_at in kernel.formulas(r"int row = (.*threadIdx.x.*?);"):
        yield Counter(
            kernel.value(row_at, tile=tile, thread=thread)
            for cta in range(kernel.grid)
            for tile in kernel.tiles(cta)
            for thread in range(kernel.block)
            if thread < kernel.ROWS_PER_CTA
        )


def once(found: Counter[int], rows: int, guarded: bool) -> bool:
    """Every row exactly once; rows behind the last only where the text guards against them."""
    assert guarded or max(found) < rows
    return all(found[row] == 1 for row in range(rows))


def check_down(kernel: Kernel, rows: int, length: int) -> None:
    partition(kernel, length)
    assert kernel.block == kernel.THREADS == kernel.TEAM * kernel.TEAMS
    guarded = kernel.has("ROWS")
    if guarded:
        assert rows == kernel.ROWS
        assert "if (row < ROWS) finish_" in kernel.body
        assert kernel.body.count("if (row < ROWS)") == kernel.body.count("const int row = ")
    assert all(once(found, rows, guarded) for found in rows_by_teams(kernel, "row"))
    if kernel.has("GROUPS"):
        (found,) = rows_by_threads(kernel)
        assert once(found, rows, guarded)
        assert kernel.ROWS_PER_CTA * kernel.SEGMENTS * kernel.GROUPS * 4 <= STATIC_SHARED_LIMIT


def check_up_mix(kernel: Kernel, branches: int, hidden: int, low_rank: int) -> None:
    partition(kernel, low_rank)
    guards, uses = kernel.body.count("if (h < HIDDEN)"), kernel.body.count("const int h = ")
    assert guards in (0, uses)
    assert kernel.body.count("if (staged_h < HIDDEN)") == (guards > 0) * kernel.body.count("int staged_h = ")
    assert all(once(found, hidden, guards > 0) for found in rows_by_teams(kernel, "h"))
    shared = 0
    if kernel.has("GROUPS"):
        shared += kernel.ROWS_PER_CTA * branches * kernel.SEGMENTS * kernel.GROUPS * 4
    if kernel.has("WORDS_PER_ROW"):
        words = branches * kernel.WORDS_PER_ROW
        assert low_rank * 2 == kernel.WORDS_PER_ROW * kernel.BYTES
        assert "for (int word = member; word < BRANCHES * WORDS_PER_ROW; word += TEAM)" in kernel.body
        shared += kernel.ROWS_PER_TEAM * kernel.TEAMS * words * kernel.BYTES
    else:
        assert kernel.CHUNK * 2 % kernel.BYTES == 0
    assert shared <= STATIC_SHARED_LIMIT


def check_norm(kernel: Kernel, branches: int, hidden: int) -> None:
    assert kernel.grid == branches
    assert kernel.block == kernel.THREADS == max(kernel.LANES, 32)
    taken: dict[int, int] = {}
    for segment, step, lane in product(range(kernel.SEGMENTS), range(kernel.STEPS), range(kernel.LANES)):
        if kernel.has("CHUNKS") and step * kernel.LANES + lane >= kernel.CHUNKS:
            continue
        start = segment * (hidden // kernel.SEGMENTS) + (step * kernel.LANES + lane) * kernel.CHUNK
        for k in range(start, start + kernel.CHUNK):
            assert k not in taken
            taken[k] = lane
    length = hidden // kernel.SEGMENTS
    assert taken == {k: (k % length) // kernel.CHUNK % kernel.LANES for k in range(hidden)}
    starts = Counter(
        k
        for thread in range(kernel.block)
        for k in range(thread * kernel.CHUNK, hidden, kernel.THREADS * kernel.CHUNK)
    )
    assert starts == Counter(range(0, hidden, kernel.CHUNK))  # the stand-alone combine


def generate(spec: HyperConnectionSpec) -> GeneratedCandidate:
    """Generate the only candidate; whatever is valid can be."""
    file = SpecFile(TEMPLATES / "odd.toml", spec)
    ((generated,),) = [
        entry.candidates for entry in generate_workloads(ENVIRONMENT, file, FAMILIES["hyper_connection"])
    ]
    return generated


SEVERAL_PASSES: dict[str, Any] = {
    "family": "hyper_connection",
    "name": "odd",
    "workload": {
        "dtype": "float16",
        "branches": 3,
        "hidden": 320,
        "low_rank": 320,
        "tree": {"norm": [2, 64, 1], "down": [3, 64, 2], "up": [1, 64, 1]},
    },
    "candidate": [
        {
            "name": "odd",
            "arch": ["sm_90"],
            "route": "replicated",
            "threads": 32,
            "down": {"rows_per_cta": 32, "ctas": 3},
            "up_mix": {"rows_per_cta": 3, "ctas": 5, "load_bytes": 16},
        }
    ],
}
"""A thread plays two lanes in several steps, tiles stride and have tails, weights are staged."""


@example(SEVERAL_PASSES)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(specs())
def test_every_row_and_every_element_exactly_once(document: dict[str, Any]) -> None:
    try:
        spec = HyperConnectionSpec.model_validate(document)
    except ValidationError:
        assume(False)
    work = spec.workload
    generated = generate(spec)
    text, launches = generated.sources[0].text, generated.lowering.kernels
    state, trees = work.branches * work.hidden, work.trees()

    def kernel(name: str, *namespaces: str) -> Kernel:
        tree = trees["down" if "down_tree" in namespaces else "up" if name == "up_mix" else "norm"]
        return Kernel(text, generated.symbols[name], launches[name], tree.lanes, *namespaces)

    check_down(kernel("down", "down_tree", "down"), work.low_rank + work.branches, state)
    check_down(kernel("down_final", "down_tree", "down_final"), work.low_rank, state)
    check_up_mix(kernel("up_mix", "up_mix"), work.branches, work.hidden, work.low_rank)
    for name in ("combine_norm", "norm", "combine"):
        check_norm(kernel(name, "norm_tree"), work.branches, work.hidden)
    for name, launch in launches.items():
        (parameters,) = re.findall(rf"{generated.symbols[name]}\((.*?)\) {{", text, re.DOTALL)
        names = [parameter.split()[-1] for parameter in parameters.split(",")]
        assert [name.removesuffix("_out") if name != "injection_out" else name for name in names] == list(
            launch.args
        )
        assert launch.shared_bytes == 0
    assert "candidate odd " in text.split("\n")[0]
