"""What a candidate promises about its machine code: `budget` (at most) and `expect` (at least), by kernel.

`budget = { registers = 64 }` holds for every kernel, `budget.my_kernel = { registers = 40 }` for one and wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from .base import INSTRUCTION, Model, Size, raise_findings
from .errors import Finding, listing, nearest, shown

Instruction = Annotated[str, Field(pattern=INSTRUCTION)]
"""A prefix of a machine instruction, such as `LDG.E.128`."""

Counts = dict[Instruction, Size]


class Budget(Model):
    """Resources that a kernel may use at most; what isn't stated is free."""

    registers: Size | None = None
    """Registers of a thread."""
    shared_bytes: Size | None = None
    """Static shared memory of a CTA, bytes."""
    spill_bytes: Size | None = None
    """Bytes of spill stores and loads of a thread."""
    stack_bytes: Size | None = None
    """Stack frame of a thread, bytes."""


class Budgets(Model):
    """The `budget` of a candidate: limits of every kernel, and of single ones."""

    every: Budget = Budget()
    kernels: dict[str, Budget] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _split_tables(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        split = handler.resolve_ref_schema(handler(schema))
        one = handler.resolve_ref_schema(dict(split["properties"]["kernels"]["additionalProperties"]))
        return {
            "type": "object",
            "properties": dict(one["properties"]),
            "additionalProperties": split["properties"]["kernels"]["additionalProperties"],
        }


def _unquoted(value: object) -> Iterator[Finding]:
    """Find instructions whose dots TOML took for tables."""
    for kernel, counts in value.items() if isinstance(value, dict) else ():
        for name, count in counts.items() if isinstance(counts, dict) else ():
            if isinstance(count, dict):
                message = 'found a table; write an instruction that holds dots in quotes, as "LDG.E.128" = 4.'
                yield Finding((kernel, name), message)


class Expectations(Model):
    """The `expect` of a candidate: instructions that every kernel, or a single one, has at least so often."""

    every: Counts = Field(default_factory=dict)
    kernels: dict[str, Counts] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        raise_findings(_unquoted(value))
        return _split_tables(value)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        handler(schema)
        count = {"type": "integer", "minimum": 0}
        table = {"type": "object", "additionalProperties": count}
        return {"type": "object", "additionalProperties": {"anyOf": [count, table]}}


def unknown_kernels(
    option: str, named: Mapping[str, object], kernels: tuple[str, ...], route: str
) -> Iterator[Finding]:
    """Find kernels that `budget` or `expect` names and the route doesn't have."""
    for name in named:
        if name not in kernels:
            has = f"its kernels are {listing(kernels)}" if kernels else "it has no kernels of ours"
            yield Finding(
                (option, name), f'route "{route}" has no kernel {shown(name)}; {has}{nearest(name, kernels)}'
            )


def _split_tables(value: object) -> object:
    """Sort what was written into limits of every kernel (plain values) and of single kernels (tables)."""
    if not isinstance(value, dict):
        return value
    return {
        "every": {key: part for key, part in value.items() if not isinstance(part, dict)},
        "kernels": {key: part for key, part in value.items() if isinstance(part, dict)},
    }
