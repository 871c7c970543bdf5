"""What a family declares of its op: tensors, kinds, options, shapes and a reference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ..table import SHORT_DTYPE, Contract, FieldValue
from .call_options import CallOptions
from .communicator import Communicator
from .plain import described

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Kind:
    """One kind of an op's calls."""

    inputs: tuple[str, ...]
    """Tensors that it takes, in the order of the op's arguments; the op's others are None."""
    outputs: tuple[str, ...]
    """Tensors that it gives, in the order of the op's results; the op's others are None."""
    without: frozenset[str] = frozenset()
    """Workload fields that such a call doesn't determine: any value serves it."""
    operator: str | None = ""
    """Name of its operator of torch; empty: `<family>_<kind>`, or the family where the kind is named like it; None:
    it has none."""
    called: tuple[str, ...] = ()
    """Names of the inputs in the operator's signature, where those of the kernels' buffers don't suit callers."""


class Declaration:
    """What a family states by class attributes, and by overriding `fields`, `shapes` and `reference`.

    Where it has more to say it also overrides `promise`, `constants`, `check_options` and `describe`.
    """

    family: ClassVar[str]
    """The family's name."""
    kinds: ClassVar[Mapping[str, Kind]]
    """Its kinds by name; the first is the default."""
    options: ClassVar[type[CallOptions]] = CallOptions
    """What a call may be told."""
    dtypes: ClassVar[Sequence[str]] = tuple(SHORT_DTYPE)
    """Dtypes that the reference serves; all tensors of a call have one of them."""
    other_dtypes: ClassVar[Mapping[str, str]] = {}
    """Tensors that always have a dtype of their own, by name."""
    free_shapes: ClassVar[frozenset[str]] = frozenset()
    """Inputs that may have any shape with the right number of elements."""
    short_form: ClassVar[Mapping[str, str]] = {}
    """Workload fields by their letters in labels, in order, as the family's spec has them."""
    alignment: ClassVar[int] = 16
    """Bytes, a power of two, that addresses must be multiples of: the widest load of a kernel."""

    arguments: ClassVar[tuple[str, ...]]
    """The op's tensors, in order: all inputs of its kinds."""
    results: ClassVar[tuple[str, ...]]
    """The op's results, in order: all outputs of its kinds."""

    def __init_subclass__(cls) -> None:
        """Put all kinds' tensors in order."""
        kinds = getattr(cls, "kinds", {}).values()
        cls.arguments = tuple(dict.fromkeys(name for kind in kinds for name in kind.inputs))
        cls.results = tuple(dict.fromkeys(name for kind in kinds for name in kind.outputs))

    def fields(self, given: Mapping[str, torch.Tensor], kind: str, options: Any) -> Mapping[str, FieldValue]:
        """The workload fields of a call; its dtype is filled in.

        Args:
            given: the kind's inputs by name, of allowed dtypes, on one device. Sizes may be symbols of a
                compiler that traces: leave those that may change from call to call as they are.
            kind: one of `kinds`.
            options: of the type `options`, checked.

        Raises:
            ValueError: shapes that can't be, in a sentence. That each tensor has the shape that `shapes` tells is
                checked afterwards.
        """
        raise NotImplementedError(
            f"the op of family {self.family} has no fields(), which this call needs: add it"
        )

    def shapes(self, fields: Mapping[str, Any], kind: str) -> Mapping[str, tuple[int, ...]]:
        """The shapes of a kind's inputs and outputs by name, and of any others; dtypes are the call's."""
        raise NotImplementedError(
            f"the op of family {self.family} has no shapes(), which this call needs: add it"
        )

    def reference(
        self, fields: Mapping[str, Any], kind: str
    ) -> Callable[..., torch.Tensor | Sequence[torch.Tensor]]:
        """The torch reference: from the kind's inputs, in order, to its outputs, fresh ones, also of no elements."""
        raise NotImplementedError(
            f"the op of family {self.family} has no reference(), which this call needs: add it"
        )

    def promise(self, fields: Mapping[str, Any], kind: str) -> tuple[Contract, str]:  # noqa: ARG002
        """What the reference promises for such a call, and how it computes, in words."""
        return "exact", "torch"

    def constants(self, fields: Mapping[str, Any]) -> Mapping[str, bytes]:  # noqa: ARG002
        """Arguments of kernels that follow from a call and aren't tensors, as the bytes that kernels take."""
        return {}

    def check_options(self, options: Any) -> None:
        """Check a call's options, here those that every op has; ValueError or TypeError where one isn't allowed."""
        comm = options.comm
        if comm is not None and not (isinstance(comm, Communicator) and isinstance(comm, Hashable)):
            raise TypeError(
                f"comm is {described(comm)}; it must be None or a communicator: hashable, with rank, world_size, "
                "layout_version, capabilities and owns()"
            )
        if getattr(comm, "local_ranks", 1) > 1:
            raise ValueError(
                f"comm has several ranks in this process, and {self.family} takes the tensors of one; call it in a "
                "process a rank, with communicator() of the dispatch module"
            )

    def describe(self, fields: Mapping[str, FieldValue]) -> str:
        """The fields in words, for sentences about shapes."""
        return ", ".join(f"{name} {value}" for name, value in fields.items() if name != "dtype")
