"""A decoder's hyper-connections in order: the boundaries between its blocks, for porting a model.

    chain = dispatch.hyper_connection.chain(layers, final)
    x = chain.begin(state)          # [N, HC * H] to the first block's input
    for block in blocks[:-1]:
        x = chain.step(block(x))
    y = chain.end(blocks[-1](x))    # the final mixer's output, [N, H]

For a model with 48 layers that is a first boundary, 95 boundaries, and the final mixer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import torch

    from .op import HyperConnection


@dataclass(frozen=True)
class Weights:
    """Of one boundary; shapes as the op takes them."""

    norm: torch.Tensor
    down: torch.Tensor
    up: torch.Tensor


class HyperConnectionChain:
    """The state of one token batch on its way through a decoder; begun anew for every step.

    Attributes:
        state: the residual, `[N, HC * H]`, behind the last combine; None before `begin`.
        injection: logits of the combine that is pending, `[N, HC]`.
    """

    def __init__(
        self, op: HyperConnection, layers: Sequence[Weights], final: Weights | None = None, **options: Any
    ) -> None:
        """Hold the weights of the boundaries in order, and of the final mixer.

        Args:
            op: the op, which decides on every call what serves it.
            layers: one for each boundary: two a decoder layer.
            final: of the final mixer, whose down weight has R rows; None where the model has none.
            options: what every call gets: `eps`, `branches`, `comm`, `exact`, `policy`.

        Raises:
            ValueError: there is no boundary.
        """
        if not layers:
            raise ValueError("a chain has at least one boundary; no weights were given")
        self._op, self._layers, self._final, self._options = op, tuple(layers), final, options
        self._next = 0
        self.state: torch.Tensor | None = None
        self.injection: torch.Tensor | None = None

    def begin(self, state: torch.Tensor) -> torch.Tensor:
        """The input of the first block, `[N, H]`, from the state, `[N, HC * H]`."""
        self._next = 0
        self.state = state
        _, block_input, self.injection = self._call("first", None, None, self._take())
        return cast("torch.Tensor", block_input)

    def step(self, block: torch.Tensor) -> torch.Tensor:
        """The input of the next block from the output of the last, both `[N, H]`.

        Raises:
            RuntimeError: the chain wasn't begun, or all its boundaries are behind it.
        """
        self.state, block_input, self.injection = self._call("boundary", block, self.injection, self._take())
        return cast("torch.Tensor", block_input)

    def end(self, block: torch.Tensor) -> torch.Tensor:
        """What follows the last block: the final mixer's output, `[N, H]`; without one the combined state.

        Raises:
            RuntimeError: boundaries are left.
        """
        if self.state is None or self._next < len(self._layers):
            raise RuntimeError(
                f"{self._next} of {len(self._layers)} boundaries are done; call begin() and step() for each of them "
                "before end()"
            )
        if self._final is None:
            result, _, _ = self._call("combine", block, self.injection, None)
        else:
            _, result, _ = self._call("final", block, self.injection, self._final)
        self.state = self.injection = None
        return cast("torch.Tensor", result)

    def _take(self) -> Weights:
        if self.state is None:
            raise RuntimeError("the chain wasn't begun; call begin() with the state of the tokens")
        if self._next == len(self._layers):
            raise RuntimeError(
                f"all {self._next} boundaries are done; call end(), or begin() for the next tokens"
            )
        weights = self._layers[self._next]
        self._next += 1
        return weights

    def _call(
        self, kind: str, block: torch.Tensor | None, injection: torch.Tensor | None, weights: Weights | None
    ) -> tuple[torch.Tensor | None, ...]:
        given = (None, None, None) if weights is None else (weights.norm, weights.down, weights.up)
        assert self.state is not None
        return self._op(self.state, block, injection, *given, kind=kind, **self._options)
