"""The workload of a `linear_all_reduce` spec: the shape on one rank, rows by cell, quantisation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from ...specs.base import Count, HalfDType, IntervalSpec, Size, as_list, one_or_several, raise_findings
from ...specs.errors import Finding
from ...specs.spec import WorkloadSpec, single
from ...specs.tree import TreeSpec
from ...table import FieldValue
from ..all_reduce.workload import WorldSizes

Quantisation = Literal["none", "fp8_per_token"]
Nonfinite = Literal["nan", "clean"]

ELEMENT = 2
QUANTISE_STEPS = 4
"""Words of a row that a thread keeps in registers; with twice as many, CTAs of 1,024 threads spill."""
MOST_QUANTISED = QUANTISE_STEPS * 1024 * 16 // ELEMENT
"""Elements of such a row: it lies in the registers of one CTA."""
ONE_OR_SEVERAL = {
    "anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "uniqueItems": True},
    ]
}
MAX_CHANNEL = 2**31
"""Bytes; kernels count the words of a slice with 32 bits."""
FP8_MULTIPLE = 16
"""What `torch._scaled_mm` wants both sides of an FP8 weight to be a multiple of."""


class Rows(IntervalSpec):
    """The dynamic dimension: an interval of M, cut into cells that are measured and decided one by one."""

    cells: tuple[Count, ...] = ()
    """M at which a new cell begins, above `min`; the crossover of a device falls on one of these."""

    def parts(self) -> tuple[Rows, ...]:
        """Give the cells, each an interval of its own."""
        begins = [self.min, *self.cells]
        ends = [begin - 1 for begin in self.cells] + [self.max]
        return tuple(Rows(min=begin, max=end) for begin, end in zip(begins, ends, strict=True))

    @model_validator(mode="after")
    def _rising(self) -> Self:
        edges = [self.min, *self.cells]
        raise_findings(
            Finding(
                ("cells", index),
                f"found {edge}; cells begin above min ({self.min}), in rising order, and not above max ({self.max}).",
            )
            for index, edge in enumerate(self.cells)
            if not edges[index] < edge <= self.max
        )
        return self


class LinearAllReduceWorkload(WorkloadSpec):
    """`sum over ranks of x [M, K] times weight [N, K] transposed`, the sum in FP32, in rank order, rounded once.

    What every rank contributes is rounded to the dtype first; how its GEMM adds is the library's business.
    """

    dtypes: Annotated[
        tuple[HalfDType, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="dtype"),
        one_or_several(HalfDType),
    ]
    """Dtype of x and of the result, or a list of them; of the weight too, unless it is quantised."""
    world_sizes: Annotated[
        tuple[WorldSizes, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="world_size"),
        one_or_several(WorldSizes),
    ]
    """Number of ranks, or a list of them."""
    width: Count
    """N, columns of the result: the hidden size of the model."""
    ks: Annotated[
        tuple[Count, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="k"),
        WithJsonSchema(ONE_OR_SEVERAL),
    ]
    """K, columns of x and of the weight on one rank; a list for linears of this width that share a channel."""
    m: Rows
    """M, rows of a call, with the cells that it is cut into."""
    quantisation: Quantisation = "none"
    """Whether x is quantised, and the weight was: FP8 with a scale for each row of x and each row of the weight."""
    channel_rows: Size = 0
    """Rows of the memory that peers can read; needed by the routes whose reduction is ours. 0: there is none."""
    nonfinite: Nonfinite = "nan"
    """What a row with Inf or NaN becomes when it is quantised: NaN, or its other elements with these at zero."""

    family: ClassVar[str] = "linear_all_reduce"
    SHORT_FORM: ClassVar[Mapping[str, str]] = {"w": "width", "k": "k", "m": "m", "tp": "world_size"}

    @property
    def k(self) -> int:
        """K of a concrete workload."""
        return single("K", self.ks)

    def expand(self) -> tuple[Self, ...]:
        """Give the concrete workloads: every dtype with every world size, every K and every cell of M."""
        return tuple(
            concrete.model_copy(update={"ks": (k,), "m": part})
            for concrete in super().expand()
            for k in self.ks
            for part in self.m.parts()
        )

    def fields(self) -> dict[str, FieldValue]:
        """Give the fields of a concrete workload as plain values."""
        return {
            "dtype": self.dtype,
            "width": self.width,
            "k": self.k,
            "m": (self.m.min, self.m.max),
            "world_size": self.world_size,
            "channel_rows": self.channel_rows,
            "quantisation": self.quantisation,
            "nonfinite": self.nonfinite,
        }

    def trees(self) -> dict[str, TreeSpec]:
        """Give no tree: the library decides the order inside of a GEMM, the ranks' order that of the sum."""
        return {}

    def problems(self) -> Iterator[Finding]:
        """Find shapes that the FP8 GEMM doesn't take, and options of a quantisation that isn't there."""
        size = self.channel_rows * self.width * ELEMENT
        if size > MAX_CHANNEL:
            rows = f"{self.channel_rows} rows of {self.width}"
            message = f"{rows} have {size} bytes; a channel holds {MAX_CHANNEL} at most."
            yield Finding(("channel_rows",), message)
        if self.quantisation == "none":
            if self.nonfinite != "nan":
                message = (
                    f'found "{self.nonfinite}", but nothing is quantised; drop it, or state a quantisation.'
                )
                yield Finding(("nonfinite",), message)
            return
        for name in ("width", "k"):
            size = getattr(self, name)
            if size % FP8_MULTIPLE:
                message = f"found {size}; an FP8 GEMM takes multiples of {FP8_MULTIPLE} alone."
                yield Finding((name,), message)
        if self.k > MOST_QUANTISED:
            message = (
                f"k is {self.k}, and a row is quantised out of the registers of one CTA, which hold {MOST_QUANTISED} "
                "elements; split the layer, or leave it unquantised."
            )
            yield Finding(("k",), message)
