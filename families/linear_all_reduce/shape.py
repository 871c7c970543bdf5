"""The shape of a row-parallel linear's call: fields, buffers and label; no tensors here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...runtime.request import Request, Signature
from ...table import ITEM_BYTES, Buffer, FieldValue

FAMILY = "linear_all_reduce"
KIND = "linear"
SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class LinearShape:
    """The numbers of one call, on one rank."""

    dtype: str
    """Of x and of the result."""
    width: int
    """N."""
    k: int
    m: int
    world_size: int
    quantisation: str = "none"
    nonfinite: str = "nan"

    @classmethod
    def of(cls, fields: Mapping[str, FieldValue]) -> LinearShape:
        """The shape of a workload's fields.

        Raises:
            ValueError: m is an interval of several numbers, or the dtype isn't served.
        """
        m = fields["m"]
        if isinstance(m, tuple):
            if m[0] != m[1]:
                raise ValueError(f"m is an interval, {m[0]} to {m[1]}; name one number of it")
            m = m[0]
        if fields["dtype"] not in ITEM_BYTES:
            raise ValueError(f"dtype is {fields['dtype']!r}; allowed are {', '.join(SHORT)}")
        names = ("width", "k", "world_size")
        width, k, world_size = (int(str(fields[name])) for name in names)
        quantisation, nonfinite = (str(fields[name]) for name in ("quantisation", "nonfinite"))
        return cls(str(fields["dtype"]), width, k, int(m), world_size, quantisation, nonfinite)

    @property
    def fields(self) -> dict[str, FieldValue]:
        """Workload fields that a call determines."""
        found: dict[str, FieldValue] = {
            "dtype": self.dtype,
            "width": self.width,
            "k": self.k,
            "m": self.m,
            "world_size": self.world_size,
            "quantisation": self.quantisation,
        }
        return found if self.quantisation == "none" else found | {"nonfinite": self.nonfinite}

    @property
    def label(self) -> str:
        """Short form, as workloads have it."""
        dtype = SHORT.get(self.dtype, self.dtype)
        return f"{dtype}-w{self.width}-k{self.k}-m{self.m}-tp{self.world_size}"

    def request(self) -> Request:
        """The request for selection."""
        x = Buffer("x", (self.m, self.k), self.dtype)
        weight = Buffer("weight", (self.width, self.k), self.dtype)
        result = Buffer("result", (self.m, self.width), self.dtype)
        return Request(
            family=FAMILY,
            kind=KIND,
            fields=self.fields,
            signature=Signature((x, weight), (result,)),
            label=self.label,
            reference_contract="tolerance",
            reference_note="torch's GEMM, then the plain all-reduce",
        )
