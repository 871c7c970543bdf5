"""General packages speak of no family: no identifier and no string of theirs has a word that belongs to one."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

import pytest
from harness.paths import CHECKOUT
from kernwright.generated.dispatch import TABLE

GENERAL = ("commands", "compiler", "emulator", "evidence", "generator", "ledger", "runtime", "specs", "table")
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        boundary boundaries branch branches decoder gemm hidden lora payload payloads residual shard shards
        token tokens
        """,
    )
)
"""Words of the families' texts. Names in the table are added: families, fields, routes, kinds, kernels, buffers."""
COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        add additions align at block channels close combine ctas down dtype eps exchange final finish first gate gates
        gather generations inputs k linear m meet norm numel outputs rank_base record reduce result scales serial
        slices staged stages stride symmetric threads timeout_ns up width world_size x y
        """,
    )
)
"""Names in the table that are words of the field as well, or of the runtime's protocol with kernels."""
LINES = frozenset({"row", "rows"})
"""Of a printed table and of a matrix too: they tell of a family in these packages alone."""
LINES_IN = ("emulator", "runtime", "table")
LEXICAL = {"token", "tokens"}
"""Of C++: what a digest of code is made of."""
ALLOWED = {
    "commands/evidence.py": LEXICAL,
    "compiler/cubin.py": {"addends"},  # of relocations
    "emulator/build.py": {"branch"},  # of a preprocessor's #else
    "emulator/text.py": {"row"},  # of the name of a PTX instruction
    "evidence/oracle/dtypes.py": {"payloads"},  # the bits of a NaN
    "evidence/proof.py": LEXICAL,
    "evidence/rekey.py": LEXICAL,
    "generator/identity.py": LEXICAL,
    "generator/sources.py": LEXICAL,
    "generator/tokens.py": LEXICAL,
    "ledger/record.py": LEXICAL,
    "runtime/adapters.py": {"tokens"},  # what engines' capture sizes count
    "runtime/policy.py": {"token"},  # of a context variable
    "specs/locate.py": LEXICAL,
    "specs/spec.py": {"gemm"},  # a library's, as an example of a control
    "table/kernel.py": {"row"},  # of the word row-major
    "table/record.py": {"boundary"},  # a scope, which records in the ledger state
}
"""Words that a file may use for something else."""


def words_of_families() -> frozenset[str]:
    """`WORDS`, and what the library's table calls things."""
    names = {family.name for family in TABLE.families}
    for work in TABLE.workloads:
        names.update(work.fields)
        for candidate in work.candidates:
            names.update((candidate.route, *candidate.kernels, *candidate.steps, *candidate.arguments))
            names.update((*candidate.scratch, *candidate.state, *candidate.options))
            names.update(name for kernel in candidate.kernels.values() for name in kernel.args)
    return (frozenset(names) - COMMON) | WORDS


def words_in(text: str) -> Iterator[tuple[int, str]]:
    """Words of identifiers and strings, docstrings too, by line: whole names, and their parts between underscores."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (
            tokenize.NAME,
            tokenize.STRING,
            getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
        ):
            for name in re.findall(r"[A-Za-z]\w*", token.string):
                split = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
                yield from ((token.start[0], word) for word in {split, *split.split("_")})


def general_files() -> list[str]:
    files = [CHECKOUT / name for name in ("__init__.py", "__main__.py", "cli.py")]
    files += [path for package in GENERAL for path in sorted((CHECKOUT / package).rglob("*.py"))]
    return [path.relative_to(CHECKOUT).as_posix() for path in files]


def found_in(file: str, text: str) -> dict[str, list[int]]:
    """Lines by word of a family."""
    words = words_of_families() | (LINES if file.partition("/")[0] in LINES_IN else frozenset())
    found: dict[str, list[int]] = {}
    for line, word in words_in(text):
        if word in words:
            found.setdefault(word, []).append(line)
    return found


def test_the_packages_are_all_that_are_general() -> None:
    """A new package is general unless it is listed here."""
    packages = {path.parent.name for path in CHECKOUT.glob("*/__init__.py")}
    assert packages - {"families", "generated", "tests"} == set(GENERAL)


@pytest.mark.parametrize("file", general_files())
def test_a_general_module_has_no_word_of_a_family(file: str) -> None:
    found = found_in(file, (CHECKOUT / file).read_text(encoding="utf-8"))
    allowed = ALLOWED.get(file, set())
    assert set(found) <= allowed, found
    assert found or not allowed, "the allow list names this file without need"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('kind = "boundary"', {"boundary"}),
        ("def warm(tokens): ...", {"tokens"}),
        ("class TokenCount: ...", {"token"}),
        ('f"waited for row {row}"', {"row"}),
        ('work.fields["payload_bytes"]', {"payload", "payload_bytes"}),
        ("first_of = fused_up_mix_gather", {"fused_up_mix_gather", "mix"}),
        ('"""Of an all_reduce."""', {"all_reduce"}),
        ("value = candidate.route  # of a token", set()),
    ],
)
def test_words_are_found(text: str, words: set[str]) -> None:
    assert set(found_in("runtime/x.py", text)) == words
