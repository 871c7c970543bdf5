"""Texts of `one_kernel` with a stage left out: wrong results, by design, so that they are never candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class NoMatch(ValueError):
    """An edit doesn't fit the text as often as it must."""


@dataclass(frozen=True)
class Edit:
    """A replacement, and how often its text must occur."""

    old: str
    new: str
    times: int = 1

    def apply(self, text: str) -> str:
        """The edited text.

        Raises:
            NoMatch: the old text isn't there as often.
        """
        found = text.count(self.old)
        if found != self.times:
            raise NoMatch(
                f"{self.old!r} is {found} times in the text, not {self.times}: adapt the edit to the templates"
            )
        return text.replace(self.old, self.new)


KERNELS = 3
"""Boundary, first and final are made from one macro."""

_NO_DOWN = (
    Edit("announce(arrival, (rows + 1) * HIDDEN * 2);", "announce(arrival, HIDDEN * 2);"),
    Edit("for (int row = 0; row < rows; ++row) {", "for (int row = rows; row < rows; ++row) {"),
)
_NO_UP = (
    Edit("announce(arrival, BRANCHES * COPIES * BYTES);", "announce(arrival, 0);"),
    Edit(
        "for (int copy = 0; copy < BRANCHES * COPIES; ++copy) {",
        "for (int copy = BRANCHES * COPIES; copy < BRANCHES * COPIES; ++copy) {",
    ),
)
_NO_WAIT = (Edit("  return all;\n", "  return all || true;\n"),)
_NO_LOOK = (
    Edit(
        "const Call& call, int row) {\n  Arrived arrived",
        "const Call& call, int row) {\n  if (true) return Partials{};\n  Arrived arrived",
    ),
)
_NO_GRID_WAIT = (Edit('asm volatile("griddepcontrol.wait;" ::: "memory");', ""),)
_ALL_ROWS_SUMMED = "for (int i = 1; i < ROWS_AT_ONCE; ++i) sum[0] += sum[i];"

STAGES: Mapping[str, Sequence[Edit]] = {
    "no weights of down": _NO_DOWN,
    "no weights of up": _NO_UP,
    "no weights": (*_NO_DOWN, *_NO_UP),
    "no conversions": (
        Edit(
            "to_float(weights.stored[i].value[e])",
            "__uint_as_float(reinterpret_cast<const unsigned int*>(&weights.stored[i])[e / 2])",
            times=2,
        ),
        Edit(
            "to_float(weights.stored[step][i].value[e])",
            "__uint_as_float(reinterpret_cast<const unsigned int&>(weights.stored[step][i]))",
        ),
        Edit(
            "to_float(weights.stored[chunk / ROWS_AT_ONCE][chunk % ROWS_AT_ONCE].value[e])",
            "__uint_as_float(reinterpret_cast<const unsigned int&>("
            "weights.stored[chunk / ROWS_AT_ONCE][chunk % ROWS_AT_ONCE]) + e)",
        ),
    ),
    "no product of down": (
        Edit(
            "const float sum = multiply(weights, y, lane);",
            "const float sum = y[0] + to_float(weights.stored[0].value[0]);",
        ),
    ),
    "no product of up": (
        Edit(
            "up::multiply(columns, input, lane)",
            "input.value[0][0] + to_float(columns.stored[0][0].value[0])",
            times=KERNELS,
        ),
    ),
    "no shuffles of products": (
        Edit("  warp_sums<ROWS_AT_ONCE>(sum, lane);\n", f"  {_ALL_ROWS_SUMMED}\n", times=2),
    ),
    "no norm": (
        Edit(
            "  float square = 0.0f;\n", "  if (true) return to_float(x.value[0]);\n  float square = 0.0f;\n"
        ),
    ),
    "no sigmoids": (Edit("{ return seeded_sigmoid(x); }", "{ return x; }"),),
    "no wait in the exchange": _NO_WAIT,
    "no exchange": _NO_LOOK,
    "no exchange, no weights": (*_NO_LOOK, *_NO_DOWN, *_NO_UP),
    "no wait for anybody": (*_NO_GRID_WAIT, *_NO_LOOK),
    "no wait for anybody, no weights": (*_NO_GRID_WAIT, *_NO_LOOK, *_NO_DOWN, *_NO_UP),
}
"""What is left out, and how."""

OTHERS: Mapping[str, Sequence[Edit]] = {
    "a row's words side by side": (
        Edit(
            "exchange.words + row * WORDS_PER_LOAD + load * (PLANE * WORDS_PER_LOAD)",
            "exchange.words + row * BRANCHES + load * WORDS_PER_LOAD",
        ),
    ),
}
"""Other ways, whose results are right: a layout that was abandoned."""


def edited(text: str, edits: Sequence[Edit]) -> str:
    """The text after all edits.

    Raises:
        NoMatch: one doesn't fit.
    """
    for edit in edits:
        text = edit.apply(text)
    return text
