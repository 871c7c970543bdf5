"""Route `external`: a team's own kernel, to compare with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from .base import CALLABLE, SYMBOL, Count, Size, as_list
from .errors import Finding, RuleError, shown
from .spec import CandidateSpec, ScheduleValues


def _three(value: object) -> object:
    """Fill up a launch dimension to three numbers: `160` means `[160, 1, 1]`."""
    sizes = as_list(value)
    return [*sizes, 1, 1][: max(3, len(sizes))] if isinstance(sizes, list) else sizes


LaunchSize = Annotated[
    tuple[Count, Count, Count],
    BeforeValidator(_three),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": 3},
            ]
        }
    ),
]


class External(CandidateSpec):
    """A Python callable, or a `.cu` file with its symbol and launch geometry."""

    route: Literal["external"]
    callable: Annotated[str, Field(pattern=CALLABLE, max_length=256)] | None = None
    """Python function as `module:function`; takes and returns the op's tensors."""
    source: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """A `.cu` file, relative to the spec file's folder and inside it."""
    symbol: Annotated[str, Field(pattern=SYMBOL, max_length=256)] | None = None
    """The kernel's name in the file (`extern "C"`)."""
    grid: LaunchSize | None = None
    """CTAs, one number or up to three."""
    block: LaunchSize | None = None
    """Threads of a CTA, one number or up to three."""
    shared_bytes: Size = 0
    """Dynamic shared memory, bytes."""

    def kernels(self) -> tuple[str, ...]:
        """Name the one kernel of a `.cu` file; a callable has none of ours."""
        return (self.symbol,) if self.symbol else ()

    def schedule(self) -> ScheduleValues:
        """Give the callable, or the file with its launch geometry."""
        if self.callable is not None:
            return {"route": self.route, "callable": self.callable}
        return {
            "route": self.route,
            "source": self.source,
            "symbol": self.symbol,
            "grid": list(self.grid or ()),
            "block": list(self.block or ()),
            "shared_bytes": self.shared_bytes,
        }

    def _own_problems(self) -> Iterator[Finding]:
        yield from super()._own_problems()
        if (self.callable is None) == (self.source is None):
            found = "neither" if self.callable is None else "both"
            message = (
                f"an external candidate has either callable or source; found {found}. "
                'Give callable = "module:function", or source with symbol, grid and block.'
            )
            yield Finding((), message)
        geometry = {"symbol": self.symbol, "grid": self.grid, "block": self.block}
        for option, value in geometry.items():
            if self.source is not None and value is None:
                yield Finding((option,), f"source needs {option}; add it to the candidate.")
            if self.source is None and self.callable is not None and value is not None:
                yield Finding(
                    (option,), f"{option} belongs to a source; a callable launches its own kernels."
                )
        threads = math.prod(self.block or ())
        if threads > 1024:
            yield Finding(("block",), f"block has {threads} threads; a CTA has at most 1024.")

    @model_validator(mode="after")
    def _contained(self, info: ValidationInfo) -> External:
        if self.source is not None:
            folder = (info.context or {}).get("folder")
            message = _escape(self.source) or (_absent(Path(folder), self.source) if folder else None)
            if message:
                raise RuleError([Finding(("source",), message)])
        return self


def _escape(source: str) -> str | None:
    """Say why a path might leave the spec file's folder; None if it stays inside as far as the path itself shows."""
    path = PurePosixPath(source)
    if path.is_absolute() or ".." in path.parts or not source.isprintable() or set(source) & {"\\", ":"}:
        return (
            f'{shown(source)} leaves the spec file\'s folder; give a relative path inside it, without "..".'
        )
    return None


def _absent(folder: Path, source: str) -> str | None:
    """Say why a file can't be taken from the folder: it isn't there, or a link leads out."""
    path = (folder / source).resolve()
    if not path.is_relative_to(folder.resolve()):
        return f"{shown(source)} is a link that leaves the spec file's folder; put the file itself inside it."
    if not path.is_file():
        return f"there is no file {shown(source)} beside the spec file."
    return None
