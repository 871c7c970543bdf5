"""The op `hyper_connection`: one call for kernels and reference, on any device.

    (x, block_input, injection_out) = hyper_connection(
        residual, block, injection, norm_weight, down_weight, up_weight, kind="boundary", eps=1e-6)

Shapes, kinds and arithmetic: docs/hyper_connection.md#tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ...runtime.call_options import CallOptions
from ...runtime.communicator import Communicator
from ...runtime.op import Op
from ...table import Contract, FieldValue
from .branches import branches_of
from .shape import EXACT_TOKENS, FAMILY, KINDS, BoundaryShape, trees_for

if TYPE_CHECKING:
    import torch

    from .chain import HyperConnectionChain, Weights

    Maybe = torch.Tensor | None
    Result = tuple[Maybe, Maybe, Maybe]

FP32_MAX = 3.4028234663852886e38


@dataclass(frozen=True)
class HyperConnectionOptions(CallOptions):
    """What a boundary is told besides its tensors."""

    eps: float = 1e-6
    """Added to the mean square, rounded to FP32."""
    branches: int | None = None
    """HC, where the tensors don't determine it and the table doesn't either."""


class HyperConnection(Op):
    """`hyper_connection`, bound to a dispatch table."""

    family = FAMILY
    kinds = KINDS
    options = HyperConnectionOptions
    short_form: ClassVar[Mapping[str, str]] = {
        "hc": "branches",
        "h": "hidden",
        "n": "tokens",
        "r": "low_rank",
        "tp": "world_size",
    }
    free_shapes = frozenset(
        {"norm_weight"}
    )  # told apart by its element count: [HC, H] is as good as [HC * H]

    def __call__(
        self,
        residual: torch.Tensor,
        block: Maybe,
        injection: Maybe,
        norm_weight: Maybe,
        down_weight: Maybe,
        up_weight: Maybe,
        *,
        kind: str = "boundary",
        eps: float = 1e-6,
        branches: int | None = None,
        comm: Communicator | None = None,
        exact: bool = False,
        policy: str | None = None,
        out: Sequence[Maybe] | None = None,
    ) -> Result:
        """One hyper-connection boundary, or a part of it, for inference.

        Args:
            residual: `[N, HC * H]`, the state; float16, bfloat16 or float32, as all tensors.
            block: `[N, H]`, output of the attention or MLP block; None for kind `first`.
            injection: `[N, HC]`, logits of the previous boundary; None for kind `first`.
            norm_weight: HC * H elements, or H that all branches share; None for kind `combine`.
            down_weight: `[R + HC, HC * H]` with rows padded to a multiple of 16; `[R, HC * H]` for kind
                `final`; None for kind `combine`.
            up_weight: `[HC * H, R]`; None for kind `combine`.
            kind: `boundary`, `first` (no pending combine), `combine` (gives only x) or `final` (gives only
                block_input).
            eps: added to the mean square, rounded to FP32.
            branches: HC, where the tensors don't determine it and the table doesn't either.
            comm: the communicator of a tensor-parallel call.
            exact: raise where only a tolerance is on offer.
            policy: which candidates may be dispatched; by default the policy in force.
            out: a tuple (x, block_input, injection_out) to write into, None for what the kind doesn't have.

        Returns:
            `(x, block_input, injection_out)` of shapes `[N, HC * H]`, `[N, H]`, `[N, HC]`; fresh tensors
            unless `out` is given; None for what the kind doesn't have.

        Raises:
            ValueError, TypeError, RuntimeError, NotExact, Unsupported, NotWarm: as `Op.__call__` says.
        """
        import torch

        arguments = (residual, block, injection, norm_weight, down_weight, up_weight)
        values = (eps, branches, exact, policy, comm)
        if torch.compiler.is_compiling():
            return self.traced(arguments, kind, values, out)  # type: ignore[no-any-return]
        return self.call(arguments, kind, values, out)  # type: ignore[no-any-return]

    def chain(
        self, layers: Sequence[Weights], final: Weights | None = None, **options: Any
    ) -> HyperConnectionChain:
        """All boundaries of a decoder in order; see `HyperConnectionChain`."""
        from .chain import HyperConnectionChain

        return HyperConnectionChain(self, layers, final, **options)

    def check_options(self, options: HyperConnectionOptions) -> None:
        """Check eps, branches and the communicator."""
        eps, branches = options.eps, options.branches
        if not (isinstance(eps, (int, float)) and 0 <= eps <= FP32_MAX):
            raise ValueError(f"eps is {eps!r}; it must be a finite FP32 number of at least 0")
        if branches is not None and (not isinstance(branches, int) or isinstance(branches, bool)):
            raise TypeError(f"branches is {branches!r}; it must be an integer of at least 2, or None")
        super().check_options(options)

    def fields(
        self,
        given: Mapping[str, torch.Tensor],
        kind: str,  # noqa: ARG002
        options: HyperConnectionOptions,
    ) -> dict[str, FieldValue]:
        """The workload fields of a call (docs/hyper_connection.md#tensors)."""
        residual, up_weight, norm = given["residual"], given.get("up_weight"), given.get("norm_weight")
        if residual.ndim != 2:
            raise ValueError(
                f"residual has shape {tuple(residual.shape)}; it must be [tokens, branches * hidden]"
            )
        # Tokens may stay a symbol of a compiler that traces; int() makes numbers of all other sizes.
        tokens, state = residual.shape[0], int(residual.shape[1])
        if up_weight is not None and (up_weight.ndim != 2 or up_weight.shape[1] == 0):
            raise ValueError(
                f"up_weight has shape {tuple(up_weight.shape)}; it must be [branches * hidden, low_rank], "
                "and low_rank at least 1"
            )
        low_rank = 0 if up_weight is None else int(up_weight.shape[1])
        branches = branches_of(self.table, given, state, low_rank, options.branches)
        return {
            "branches": branches,
            "hidden": state // branches,
            "tokens": tokens,
            "world_size": 1 if options.comm is None else options.comm.world_size,
            "low_rank": low_rank,
            "eps": float(options.eps),
            "norm_weight": "shared" if norm is not None and norm.numel() != state else "per_branch",
        }

    def shapes(self, fields: Mapping[str, Any], kind: str) -> Mapping[str, tuple[int, ...]]:
        """The shapes of all tensors."""
        return BoundaryShape.of(fields).tensors(kind)

    def describe(self, fields: Mapping[str, FieldValue]) -> str:
        """Its sizes in words."""
        return (
            f"{fields['tokens']} tokens, {fields['branches']} branches, hidden {fields['hidden']} and "
            f"low_rank {fields.get('low_rank', 0)}"
        )

    def reference(self, fields: Mapping[str, Any], kind: str) -> Callable[..., Sequence[torch.Tensor]]:
        """By the trees up to `EXACT_TOKENS`, above by torch's GEMMs."""
        from .reference import reference

        trees, _ = trees_for(self.table, fields, kind)
        return reference(BoundaryShape.of(fields), kind, trees)

    def promise(self, fields: Mapping[str, Any], kind: str) -> tuple[Contract, str]:
        """The reference is exact for few tokens."""
        tokens = fields["tokens"]
        if tokens <= EXACT_TOKENS:
            return "exact", f"torch, tree-exact, {trees_for(self.table, fields, kind)[1]}"
        return "tolerance", f"torch with library GEMMs, because {tokens} tokens are more than {EXACT_TOKENS}"

    def constants(self, fields: Mapping[str, Any]) -> Mapping[str, bytes]:
        """The number of tokens."""
        return {"tokens": fields["tokens"].to_bytes(4, "little")}


OP = HyperConnection
