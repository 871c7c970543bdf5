"""The types that every family's spec is made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from .errors import Finding, RuleError
from .tree import MAX_COUNT, TreeSpec


class Model(BaseModel):
    """A frozen model that refuses keys it doesn't know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def as_list(value: object) -> object:
    """Let a single value stand for a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def one_or_several(values: object) -> WithJsonSchema:
    """Describe to editors what `as_list` takes: one of the literals `values`, or a list of them."""
    item = {"enum": list(get_args(values))}
    return WithJsonSchema(
        {"anyOf": [item, {"type": "array", "items": item, "minItems": 1, "uniqueItems": True}]}
    )


def raise_findings(findings: Iterable[Finding]) -> None:
    """Raise all findings of a validator at once, if there are any.

    Raises:
        RuleError: there is at least one.
    """
    found = tuple(findings)
    if found:
        raise RuleError(found)


SLUG = r"^[a-z0-9_]+$"
LABEL = r"^[a-z0-9]+(-[a-z0-9]+)*$"
SYMBOL = r"^[A-Za-z_][A-Za-z0-9_]*$"
PACKAGE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
CALLABLE = r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$"
INSTRUCTION = r"^[A-Z][A-Z0-9_.]*$"
SHA256 = r"^[0-9a-f]{64}$"
DEVICE = r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$"

PATTERNS: dict[str, str] = {
    SLUG: "lowercase letters, digits and underscores",
    LABEL: "words of lowercase letters and digits, joined by hyphens",
    SYMBOL: "names of C functions",
    PACKAGE: 'dotted names of Python packages, such as "my_package.my_family"',
    CALLABLE: 'Python functions, as "module:function"',
    INSTRUCTION: 'instructions in capitals, such as "LDG.E.128"',
    SHA256: "SHA-256 digests in lowercase hexadecimal",
    DEVICE: 'names of devices, such as "NVIDIA H200"',
}
"""What a pattern means, in the words of an error message."""

Slug = Annotated[str, Field(pattern=SLUG, max_length=64)]
"""A name that is safe in file names and identifiers: nothing else of a spec becomes text of a kernel."""

Count = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Size = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
Flag = Annotated[bool, Field(strict=True)]
Positive = Annotated[float, Field(strict=True, gt=0, lt=1e38, allow_inf_nan=False)]
"""Above 0; kernels take it as FP32."""
Bound = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]

HalfDType = Literal["float16", "bfloat16"]
DType = Literal["float16", "bfloat16", "float32"]
SHORT_DTYPE: dict[str, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
DTYPE_BYTES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4}

Arch = Literal["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120"]

WorldSize = Literal[1, 2, 4, 8]

TreeList = Annotated[
    TreeSpec,
    PlainValidator(TreeSpec.parse),
    WithJsonSchema(
        {
            "type": "array",
            "prefixItems": [
                {"type": "integer", "minimum": 1, "description": "segments"},
                {"type": "integer", "minimum": 1, "maximum": 1024, "description": "lanes"},
                {"type": "integer", "minimum": 1, "description": "chunk"},
            ],
            "items": {"type": "integer"},  # for editors that don't know prefixItems
            "minItems": 3,
            "maxItems": 3,
            "description": "Reduction tree: [segments, lanes, chunk].",
        }
    ),
]


class IntervalSpec(Model):
    """An inclusive interval of integers: the one dynamic dimension of a workload."""

    min: Count
    max: Count

    @model_validator(mode="after")
    def _ordered(self) -> IntervalSpec:
        if self.min > self.max:
            raise ValueError(f"the interval runs from {self.min} to {self.max}; min must not exceed max.")
        return self


def _as_interval(value: object) -> object:
    return {"min": value, "max": value} if type(value) is int else value


IntervalOrCount = Annotated[
    IntervalSpec,
    BeforeValidator(_as_interval),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {
                    "type": "object",
                    "properties": {
                        "min": {"type": "integer", "minimum": 1},
                        "max": {"type": "integer", "minimum": 1},
                    },
                    "required": ["min", "max"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class ToleranceSpec(Model):
    """Bounds for a candidate whose contract is "tolerance"; at least one is stated."""

    atol: Bound | None = None
    """Largest absolute error of an element."""
    rtol: Bound | None = None
    """Largest relative error of an element."""
    relative_l2: Bound | None = None
    """Largest L2 norm of the error over the L2 norm of the reference."""

    @model_validator(mode="after")
    def _stated(self) -> ToleranceSpec:
        if self.atol is None and self.rtol is None and self.relative_l2 is None:
            raise ValueError("the tolerance states no bound; give atol, rtol or relative_l2.")
        return self
