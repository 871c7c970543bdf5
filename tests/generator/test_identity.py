"""What a digest of code covers: everything that decides what runs, and neither comments nor layout."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from kernwright.compiler.nvrtc import FLAGS
from kernwright.generator import Generation, Lowering, ledger_folder, plan_generation, sources
from kernwright.generator.environment import TEMPLATES, render
from kernwright.generator.header import describe_launches
from kernwright.generator.identity import code_digest
from kernwright.generator.records import current_sources
from kernwright.generator.tokens import token_digest, tokens
from kernwright.ledger import read_records, stale
from kernwright.specs import ToleranceSpec, TreeSpec, find_workspace
from kernwright.table import Launch

BOUNDS = ToleranceSpec(relative_l2=0.5)
PINNED = "bbe74c18d813a09d02e8672d2a11266c4ec09056fa7b421e91131e51da8ab153"


@pytest.fixture(scope="module")
def library() -> Generation:
    return plan_generation(find_workspace(TEMPLATES))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a /* x */ + // y\n b", ["a", "+", "b"]),
        ('f("/* no */ // comment")', ["f", "(", '"/* no */ // comment"', ")"]),
        ("x = '\"'; // '", ["x", "=", "'\"'", ";"]),
        ("#define  A   1 /* one */  \nA", ["#define A 1", "A"]),
        ("#define F(x) x", ["#define F(x) x"]),
        ("#define F (x) x", ["#define F (x) x"]),
        ("1.5e-3f+0x1p-3f", ["1.5e-3f", "+", "0x1p-3f"]),
        ("a+ +b", ["a", "+", "+", "b"]),
        ("a++ +b", ["a", "++", "+", "b"]),
        ("1'000'000 'x'", ["1'000'000", "'x'"]),
        ('R"(a // b)" c', ['R"(a // b)"', "c"]),
        ("a <<= b >> c::d", ["a", "<<=", "b", ">>", "c", "::", "d"]),
        ("one \\\n two", ["one", "two"]),
    ],
)
def test_tokens(text: str, expected: list[str]) -> None:
    assert tokens(text) == expected


def commented(text: str) -> str:
    return text.replace(";\n", ";  // why\n/* more\n lines */\n")


def reformatted(text: str) -> str:
    return re.sub(r"^ +", lambda found: 2 * found[0], text, flags=re.MULTILINE).replace(";\n", "\n  ;\n\n")


def without_header(text: str) -> str:
    return "// Another title\n" + text[text.index("\n\n") :]


HARMLESS = [commented, reformatted, without_header]


@pytest.mark.parametrize("change", HARMLESS)
def test_comments_and_layout_of_every_library_text_dont_count(
    library: Generation, change: Callable[[str], str]
) -> None:
    texts = [text for name, text in library.files.items() if name.endswith(".cu")]
    assert len(texts) > 100
    for text in texts:
        assert change(text) != text
        assert token_digest(change(text)) == token_digest(text)


def stale_after(monkeypatch: Any, change: Callable[[str], str]) -> tuple[int, int]:
    """Library records that are stale where every text is changed, and all of them."""
    monkeypatch.setattr(sources, "render", lambda *given: change(render(*given)))
    generation = plan_generation(find_workspace(TEMPLATES))
    records = read_records(ledger_folder(generation.workspace))
    if not records:
        pytest.skip("the records aren't part of an installed package")
    return len(stale(records, current_sources(generation.workloads))), len(records)


def test_no_record_is_stale_after_changes_of_comments_and_layout(monkeypatch: Any) -> None:
    before, total = stale_after(monkeypatch, lambda text: text)
    assert before < total
    monkeypatch.undo()
    assert stale_after(monkeypatch, lambda text: commented(reformatted(without_header(text))))[0] == before


def test_records_are_stale_after_a_changed_constant(monkeypatch: Any) -> None:
    found, total = stale_after(
        monkeypatch,
        lambda text: re.sub(r"\bint (\w+) = (\d+)", r"int \1 = 1\2", text[text.index("\n\n") :], count=1),
    )
    assert total // 8 < found < total  # a route of libraries alone has no text


@pytest.mark.parametrize(
    ("old", "new"), [("uint4", "uint2"), (" 32", " 16"), (" + ", " - "), ("float ", "int ")]
)
def test_a_changed_word_of_code_counts(library: Generation, old: str, new: str) -> None:
    changed = 0
    for name, text in library.files.items():
        body = text[text.find("\n\n") :]
        if name.endswith(".cu") and old in re.sub(r"//.*", "", body):
            changed += 1
            bare = re.sub(r"//.*", "", body)
            assert token_digest(bare.replace(old, new, 1)) != token_digest(text)
    assert changed > 40


def one(library: Generation) -> Any:
    """A workload and a candidate of the library."""
    workload = next(w for w in library.workloads if w.spec == "qwen38_flash_n16")
    return workload.workload, workload.candidates[0]


def launched(lowering: Lowering, **changes: Any) -> Lowering:
    name, launch = next(iter(lowering.kernels.items()))
    return replace(lowering, kernels={**lowering.kernels, name: replace(launch, **changes)})


def test_launches_contract_and_flags_count(library: Generation) -> None:
    workload, made = one(library)
    candidate, lowering, symbols = made.candidate, made.lowering, made.symbols
    known = made.sources[0]
    text, arch = token_digest(known.text), known.arch
    assert code_digest(workload, candidate, lowering, symbols, text, arch) == known.code
    launch = next(iter(lowering.kernels.values()))
    launches = {
        "grid": (launch.grid[0] + 1, 1, 1),
        "block": (launch.block[0] + 32, 1, 1),
        "args": launch.args[::-1],
        "shared_bytes": launch.shared_bytes + 16,
        "programmatic": not launch.programmatic,
        "resident": not launch.resident,
        "cooperative": not launch.cooperative,
    }
    assert set(launches) == {field.name for field in fields(Launch)}
    others = {
        "steps": {kind: steps[::-1] + steps for kind, steps in lowering.steps.items()},
        "scratch": {**lowering.scratch, "more": ((1,), "float32")},
        "state": {"more": ((1,), "uint32")},
        "arguments": {"more": "uint64"},
        "options": {"more": 1},
        "capabilities": ("more",),
        "channel": {"size": 17},
    }
    # What a template and its numbers make is in the tokens; how little scratch the emulator needs changes no kernel.
    assert {field.name for field in fields(Lowering)} - set(others) == {
        "template",
        "constants",
        "kernels",
        "scratch_by",
    }
    lowerings = [launched(lowering, **{name: value}) for name, value in launches.items()]
    lowerings += [replace(lowering, **{name: value}) for name, value in others.items()]
    workloads = [
        workload.model_copy(update={"eps": 2e-6}),
        workload.model_copy(update={"tree": workload.tree.model_copy(update={"up": TreeSpec(2, 32, 2)})}),
        workload.model_copy(update={"dtypes": ("bfloat16" if workload.dtype == "float16" else "float16",)}),
        workload.model_copy(update={"norm_weight": "shared"}),
    ]
    bounds = candidate.model_copy(update={"tolerance": BOUNDS, "contract": "tolerance"})
    digests = [
        *(code_digest(workload, candidate, other, symbols, text, arch) for other in lowerings),
        *(code_digest(other, candidate, lowering, symbols, text, arch) for other in workloads),
        code_digest(workload, bounds, lowering, symbols, text, arch),
        code_digest(workload, candidate, lowering, symbols, "0" * 64, arch),
        code_digest(workload, candidate, lowering, symbols, text, "sm_120"),
        code_digest(workload, candidate, lowering, symbols, text, arch, flags=(*FLAGS, "-G")),
        code_digest(workload, candidate, lowering, {n: f"{s}_" for n, s in symbols.items()}, text, arch),
    ]
    assert len({known.code, *digests}) == 1 + len(digests)


def test_what_decides_nothing_of_what_runs_doesnt_count(library: Generation) -> None:
    workload, made = one(library)
    known = made.sources[0]
    same = made.candidate.model_copy(update={"min_sms": 7, "arch": ("sm_120",)})
    wider = workload.model_copy(
        update={"tokens": workload.tokens.model_copy(update={"max": workload.tokens.max + 1})}
    )
    moved = replace(made.lowering, template="elsewhere.cu.j2", constants={"other": 1})
    assert wider.label() != workload.label()  # the label says for which calls a record speaks
    digest = code_digest(wider, same, moved, made.symbols, token_digest(known.text), known.arch)
    assert digest == known.code


def test_the_layout_of_the_document_stays(library: Generation) -> None:
    """The digest of a fixed candidate. It changes only with `identity.VERSION`, and then all records are stale."""
    workload = next(w.workload for w in library.workloads if w.spec == "hc8_h2048_r128_tp1")
    candidate = next(w.candidates[0].candidate for w in library.workloads if w.spec == "hc8_h2048_r128_tp1")
    launch = Launch((2, 1, 1), (32, 1, 1), ("a", "b"), shared_bytes=4)
    lowering = Lowering("t", {}, {"k": launch}, {"boundary": ("k",)}, {"a": ((1, 2), "float16")})
    assert code_digest(workload, candidate, lowering, {"k": "s"}, "0" * 64, "sm_90", ("-f",)) == PINNED


def test_a_header_states_what_is_launched(library: Generation) -> None:
    for workload in library.workloads:
        for made in workload.candidates:
            if made.symbols:
                stated = set(made.sources[0].text.splitlines())
                assert {f"// {line}" for line in describe_launches(made.lowering)} <= stated
                assert f"// Compiled with {' '.join(FLAGS)}" in stated
