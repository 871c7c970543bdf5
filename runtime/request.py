"""What a call asks for, as a value: fields to match, buffers to pass, and what kernels can't take."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..table import Buffer, Contract, FieldValue

if TYPE_CHECKING:
    import torch

    from .communicator import Communicator
    from .device import Device
    from .explanation import Explanation
    from .selection import Choice

    Runner = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor] | None], Sequence[torch.Tensor]]
    """Inputs and, if they are the caller's, outputs, in the order of a signature; gives the outputs."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors of one kind of an op, in the order in which plans take and give them."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    alignment: int = 1
    """Bytes, a power of two, that addresses must be multiples of: kernels load so many at once."""

    def of_one_rank(self, arguments: Mapping[str, str], ranks: int) -> Signature:
        """From that of `ranks` in one process; each has a part of what kernels take as a struct of pointers."""

        def own(buffer: Buffer) -> Buffer:
            if ranks == 1 or not pointers(arguments.get(buffer.name, "")):
                return buffer
            return replace(buffer, shape=(math.prod(buffer.shape) // ranks,))

        return replace(self, inputs=tuple(map(own, self.inputs)), outputs=tuple(map(own, self.outputs)))


def pointers(argument: str) -> int:
    """Length of the struct that an argument is, 0 if it is none: 4 for `pointers[4]`."""
    return int(argument[9:-1]) if argument.startswith("pointers[") else 0


@dataclass(frozen=True, slots=True)
class Request:
    """One call, reduced to what selection depends on."""

    family: str
    kind: str
    fields: Mapping[str, FieldValue]
    """Workload fields that the call determines; a field that the kind doesn't have is absent."""
    signature: Signature
    label: str
    """Short form of the shape asked for, written like a workload's label."""
    reference_contract: Contract
    """What the family's torch reference promises for this call."""
    reference_note: str
    """How the reference would compute it, in words."""
    problems: tuple[str, ...] = ()
    """Tensors that no kernel can take as they lie in memory, a sentence each."""
    constants: Mapping[str, bytes] = field(default_factory=dict)
    """Arguments of the kernels that follow from the call and aren't tensors."""


class Operator(Protocol):
    """What a family's op tells the dispatcher about itself.

    One that changes models has `state()`, JSON-able data that tells how, for the fingerprint.
    """

    @property
    def family(self) -> str:
        """The family's name."""

    def request_for(self, fields: Mapping[str, FieldValue], kind: str) -> Request:
        """As `Op.request_for`."""

    def reference_for(self, fields: Mapping[str, FieldValue], kind: str) -> Runner:
        """As `Op.reference_for`."""

    def load(self, choice: Choice, request: Request, device: Device, comm: Communicator | None) -> object:
        """Load what was chosen for a request: a plan, or what the op runs instead; LoadError, NotWarm."""

    def forget(self) -> None:
        """Decide the next calls anew."""

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """As `Op.explain`."""
