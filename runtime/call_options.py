"""What a call may be told besides its tensors, and how operators of torch write it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .communicator import Communicator


@dataclass(frozen=True)
class CallOptions:
    """What every call may be told; a family with options of its own derives from it.

    Options are part of the operators of torch, so each is a bool, int, float or str, or one of those or None.
    """

    comm: Communicator | None = None
    """The ranks; a family that needs some declares `comm` without a default, `= field()`."""
    exact: bool = False
    """Raise where only a tolerance is on offer."""
    policy: str | None = None
    """Which candidates may be dispatched; None: the policy in force."""


LAST = ("exact", "policy", "comm")
"""Options that every op has; a family's own come before them."""

PLAIN = ("bool", "int", "float", "str")
SCHEMA_TYPES: Mapping[str, str] = {
    **{name: name for name in PLAIN},
    **{f"{name} | None": f"{name}?" for name in PLAIN},
}


def option_defaults(options: type[CallOptions]) -> dict[str, object]:
    """Every option with its default, in the order in which calls carry them; None where one is required."""
    named = {option.name: option.default for option in _ordered(options)}
    return {name: None if default is MISSING else default for name, default in named.items()}


def options_schema(options: type[CallOptions]) -> str:
    """The options as torch's schemas write them (`*, float eps=1e-06, ...`); TypeError where torch lacks a type."""
    required_first = sorted(_ordered(options), key=lambda option: option.default is not MISSING)
    return ", ".join(["*", *map(_in_schema, required_first)])


def _ordered(options: type[CallOptions]) -> list[Field[object]]:
    return sorted(fields(options), key=lambda option: LAST.index(option.name) if option.name in LAST else -1)


def _in_schema(option: Field[object]) -> str:
    required = option.default is MISSING
    if option.name == "comm":  # graphs know a communicator by its name
        return "str comm" if required else "str? comm=None"
    written = option.type if isinstance(option.type, str) else getattr(option.type, "__name__", option.type)
    if isinstance(option.type, type(int | None)):
        written = str(option.type)
    kind = SCHEMA_TYPES.get(str(written))
    if kind is None:
        raise TypeError(
            f"option {option.name} is declared as {written}; operators of torch take {', '.join(PLAIN)}, or one of "
            "them | None"
        )
    if required:
        return f"{kind} {option.name}"
    default = json.dumps(option.default) if isinstance(option.default, str) else repr(option.default)
    return f"{kind} {option.name}={default}"
