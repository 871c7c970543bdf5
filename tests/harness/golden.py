"""Golden digests: what the array oracle answered, kept so that a machine can check in milliseconds.

`python -m harness.golden [FOLDER]`, run in `tests`, recomputes all of them and writes `FOLDER/hyper_connection.json`
(default: the package's `ledger/golden`). Only this command writes that file; tests recompute it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kernwright
from kernwright.evidence.oracle.dtypes import digest
from kernwright.families.hyper_connection.inputs import INPUT_KINDS, InputKind, tensors, weights
from kernwright.families.hyper_connection.oracle import boundary
from kernwright.families.hyper_connection.oracle_shape import OracleShape
from kernwright.families.hyper_connection.shape import KINDS

FORMAT = 1
FOLDER = Path(kernwright.__file__).parent / "ledger" / "golden"
FILE = "hyper_connection.json"


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One boundary with seeded inputs."""

    shape: OracleShape
    kind: str
    inputs: InputKind
    seed: int

    @property
    def name(self) -> str:
        """A readable key, e.g. `float16-hc4-h2560-r320-n1-boundary-normal-1`."""
        s = self.shape
        sizes = f"hc{s.branches}-h{s.hidden}-r{s.low_rank}-n{s.tokens}"
        return f"{s.dtype}-{sizes}-{self.kind}-{self.inputs}-{self.seed}"

    def digests(self) -> dict[str, str]:
        """SHA-256 of the inputs, and of each tensor that the oracle gives."""
        given = tensors(self.shape, self.inputs, self.seed) | weights(self.shape, self.seed, self.kind)
        stored = boundary(self.shape, given, self.kind)
        dtype = self.shape.storage
        return {"inputs": digest(given, dtype)} | {
            name: digest({name: bits}, dtype) for name, bits in stored.items()
        }


def small_cases() -> Iterator[GoldenCase]:
    """Workloads that take milliseconds: every kind of boundary and of input, both dtypes, odd sizes."""
    odd = {"norm": (1, 4, 2), "down": (3, 8, 4), "up": (1, 2, 5)}
    wide = {"norm": (1, 32, 8), "down": (4, 32, 8), "up": (1, 32, 2)}
    for dtype in ("float16", "bfloat16"):
        tiny = OracleShape(
            dtype, branches=3, hidden=24, low_rank=10, tokens=2, trees=odd, norm_weight="shared"
        )
        usual = OracleShape(dtype, branches=4, hidden=256, low_rank=32, tokens=1, trees=wide)
        for kind in KINDS:
            yield GoldenCase(tiny, kind, "normal", seed=1)
        for inputs in INPUT_KINDS:
            yield GoldenCase(usual, "boundary", inputs, seed=2)


def real_cases() -> Iterator[GoldenCase]:
    """The real shape: HC4, H2560, R320, N1."""
    trees = {"norm": (1, 320, 8), "down": (4, 320, 8), "up": (1, 32, 2)}
    for dtype in ("float16", "bfloat16"):
        shape = OracleShape(dtype, branches=4, hidden=2560, low_rank=320, tokens=1, trees=trees)
        yield GoldenCase(shape, "boundary", "normal", seed=3)
        yield GoldenCase(shape, "boundary", "large", seed=4)


def write_golden(folder: Path = FOLDER) -> Path:
    """Compute all digests and write them as JSON; returns the file."""
    entries: dict[str, Any] = {}
    for case in (*small_cases(), *real_cases()):
        entries[case.name] = {"case": asdict(case), "sha256": case.digests()}
    text = json.dumps(
        {
            "format": FORMAT,
            "made_by": "python -m harness.golden",
            "entries": entries,
        },
        indent=2,
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    path.write_text(text + "\n", encoding="utf-8")
    return path


def read_golden(folder: Path = FOLDER) -> dict[str, dict[str, str]]:
    """SHA-256 by tensor name, by case name.

    Raises:
        FileNotFoundError: if the file was never written.
        ValueError: if it has another format.
    """
    content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if content["format"] != FORMAT:
        raise ValueError(
            f"{folder / FILE} has format {content['format']}; this version reads {FORMAT}: write it again."
        )
    return {name: entry["sha256"] for name, entry in content["entries"].items()}


if __name__ == "__main__":
    print(write_golden(*map(Path, sys.argv[1:2])))
