"""What is timed of a row-parallel linear: four calls on one x, as layers of a prefill chunk make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ...table import Workload
from .overlap.quantise import quantised

if TYPE_CHECKING:
    from ...evidence.family_evidence import Call

CALLS = 4


@dataclass(frozen=True)
class LinearChain:
    """Calls with weights of their own: a weight isn't found in the L2 cache."""

    x: torch.Tensor
    """[M, K] of this rank."""
    weights: tuple[tuple[torch.Tensor, ...], ...]
    """[N, K] of each call; codes as bytes, with their scales, of a quantised one."""
    scope: Any = "end_to_end"
    kind: str = "linear"

    @classmethod
    def make(cls, workload: Workload, device: torch.device, seed: int, at: int) -> LinearChain:
        """Make a rank's x of `at` rows, and its weights."""
        fields = workload.fields
        width, k = int(str(fields["width"])), int(str(fields["k"]))
        generator = torch.Generator(device).manual_seed(seed)

        def drawn(*shape: int) -> torch.Tensor:
            normal = torch.randn(shape, generator=generator, device=device)
            scaled: torch.Tensor = normal / k**0.25
            return scaled.to(getattr(torch, str(fields["dtype"])))

        x = drawn(at, k)
        made = [drawn(width, k) for _ in range(CALLS)]
        plain = fields["quantisation"] == "none"
        return cls(x, tuple((weight,) if plain else quantised(weight) for weight in made))

    @property
    def calls(self) -> int:
        """Linears in a run."""
        return len(self.weights)

    @property
    def bytes(self) -> int:
        """Each call reads x and its weight, and writes a result."""
        result = self.x.shape[0] * self.weights[0][0].shape[0] * self.x.element_size()
        return sum(self.x.nbytes + result + sum(tensor.nbytes for tensor in each) for each in self.weights)

    @property
    def flops(self) -> int:
        """Of the GEMMs."""
        return 2 * sum(self.x.shape[0] * weight.numel() for weight, *_ in self.weights)

    def run(self, call: Call) -> list[Any]:
        """The results, in order."""
        return [call([self.x, *each]) for each in self.weights]

    def read(self) -> Callable[[], None]:
        """Reads as many bytes from memory of this rank."""
        from ...evidence.floor import reader

        return reader(self.bytes, self.x.device)
