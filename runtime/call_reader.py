"""Reading a call: its workload fields out of its tensors, and what selection looks at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..table import SHORT_DTYPE, Buffer, FieldValue
from .arguments import (
    check_device,
    check_dtypes_and_devices,
    check_plain,
    check_presence,
    checked_kind,
    checked_out,
    dtype_name,
    layout_problems,
)
from .declaration import Declaration
from .request import Request, Signature

if TYPE_CHECKING:
    import torch

    Maybe = torch.Tensor | None


class CallReader(Declaration):
    """What a family's declaration makes of a call's tensors, or of a workload's fields."""

    def request(self, fields: Mapping[str, FieldValue], kind: str, problems: tuple[str, ...] = ()) -> Request:
        """What selection looks at; `problems` are tensors that no kernel can take as they lie in memory."""
        contract, note = self.promise(fields, kind)
        return Request(
            family=self.family,
            kind=kind,
            fields=fields,
            signature=self.signature(fields, kind),
            label=self.label(fields),
            reference_contract=contract,
            reference_note=note,
            problems=problems,
            constants=self.constants(fields),
        )

    def signature(self, fields: Mapping[str, FieldValue], kind: str) -> Signature:
        """The buffers of a kind."""
        declared, shapes = self.kinds[kind], self.shapes(fields, kind)

        def buffers(names: Sequence[str]) -> tuple[Buffer, ...]:
            dtypes = [self.other_dtypes.get(name, str(fields["dtype"])) for name in names]
            return tuple(
                [Buffer(name, tuple(shapes[name]), d) for name, d in zip(names, dtypes, strict=True)]
            )

        return Signature(buffers(declared.inputs), buffers(declared.outputs), self.alignment)

    def label(self, fields: Mapping[str, FieldValue]) -> str:
        """Short form, as workloads have it: `fp16-hc4-h2560-n1-r320-tp1`."""
        dtype = str(fields["dtype"])
        sizes = [f"{letters}{fields[name]}" for letters, name in self.short_form.items() if name in fields]
        return "-".join([SHORT_DTYPE.get(dtype, dtype), *sizes])

    def read(
        self, arguments: Sequence[Maybe], kind: str, options: Any, *, real: bool = True
    ) -> tuple[dict[str, torch.Tensor], dict[str, FieldValue]]:
        """A call's inputs by name, and its workload fields.

        Tensors of a compiler that only traces aren't `real`: they have no memory, and their sizes may be symbols.

        Raises:
            ValueError, TypeError: the call isn't valid; the sentence says what was found and what is allowed.
        """
        declared = checked_kind(kind, self.kinds)
        for name, argument in zip(self.arguments, arguments, strict=True):
            check_presence(name, argument, name in declared.inputs, kind, name)
            if real:
                check_plain(argument, name)
        named = by_name(self.arguments, arguments)
        given = {name: named[name] for name in declared.inputs}
        check_dtypes_and_devices(given, self.dtypes, self.other_dtypes)
        first = next(iter(given.values()))
        if real and first.is_meta:
            raise ValueError(
                f"{declared.inputs[0]} is on meta, where tensors have no values; pass tensors on cuda or cpu"
            )
        self.check_options(options)
        if real:
            check_device(first, options.comm, declared.inputs[0])
        leading = next((given[name] for name in given if name not in self.other_dtypes), first)
        fields = {"dtype": dtype_name(leading), **self.fields(given, kind, options)}
        fields = {name: value for name, value in fields.items() if name not in declared.without}
        self._check_shapes(given, fields, kind)
        return given, fields

    def _check_shapes(
        self, given: Mapping[str, torch.Tensor], fields: Mapping[str, FieldValue], kind: str
    ) -> None:
        shapes = self.shapes(fields, kind)
        for name, tensor in given.items():
            wanted = tuple(shapes[name])
            free = name in self.free_shapes
            if tensor.numel() != math.prod(wanted) if free else tuple(tensor.shape) != wanted:
                raise ValueError(
                    f"{name} has shape {tuple(tensor.shape)}; with {self.describe(fields)}, "
                    f"kind {kind} needs {wanted}"
                )

    def one_call(self, fields: Mapping[str, FieldValue], kind: str) -> dict[str, FieldValue]:
        """A workload's fields as a call's of one kind; ValueError for an unknown kind or dtype, or an interval."""
        without = checked_kind(kind, self.kinds).without
        if fields["dtype"] not in self.dtypes:
            raise ValueError(f"dtype is {fields['dtype']!r}; allowed are {', '.join(self.dtypes)}")
        return {name: _single(name, value) for name, value in fields.items() if name not in without}

    def requested(
        self, arguments: Sequence[Maybe], kind: str, options: Any, out: Sequence[Maybe] | None
    ) -> tuple[Request, torch.device]:
        given, fields = self.read(arguments, kind, options)
        written: dict[str, torch.Tensor] = {}
        if out is not None:
            written = checked_out(self.signature(fields, kind), given, kind, out, self.called_results())
        problems = layout_problems({**given, **written}, self.alignment)
        return self.request(fields, kind, problems), next(iter(given.values())).device

    def request_for(self, fields: Mapping[str, FieldValue], kind: str) -> Request:
        """The request of a well laid out call of a workload's shape; ValueError as `one_call`."""
        return self.request(self.one_call(fields, kind), kind)

    def called_results(self) -> dict[str, str]:
        """How sentences call each of the op's results."""
        single = len(self.results) == 1
        return {name: "out" if single else f"out's {name}" for name in self.results}


def by_name(names: Sequence[str], tensors: Sequence[Any]) -> dict[str, torch.Tensor]:
    """Those that are there, by name."""
    return {name: tensor for name, tensor in zip(names, tensors, strict=True) if tensor is not None}


def _single(name: str, value: FieldValue) -> str | int | float:
    if not isinstance(value, tuple):
        return value
    if value[0] != value[1]:
        raise ValueError(f"{name} is an interval, {value[0]} to {value[1]}; name one number of it")
    return value[0]
