"""A small decoder whose residual scheme is hyper-connections: every boundary is one call of our op.

Weights are random. It decodes a few tokens eagerly and compiled, on a GPU if there is one, and shows that the op's
results are the same bits wherever the same inputs reach it: `python examples/decoder.py`.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import torch
from kernwright.generated import dispatch
from torch import nn

BRANCHES = 4
ROW_MULTIPLE = 16  # rows of the down weight are padded to a multiple of this


@dataclass
class Trace:
    """What went into the op's calls and what came out, in order."""

    inputs: list[tuple[torch.Tensor | None, ...]] = field(default_factory=list)
    outputs: list[tuple[torch.Tensor | None, ...]] = field(default_factory=list)


class HyperConnection(nn.Module):
    """One boundary: adds the output of the block before to the state, and computes the input of the next block."""

    def __init__(self, hidden: int, rank: int, kind: str) -> None:
        super().__init__()
        state = BRANCHES * hidden
        rows = rank if kind == "final" else -(-(rank + BRANCHES) // ROW_MULTIPLE) * ROW_MULTIPLE
        self.kind = kind
        self.norm_weight = nn.Parameter(torch.randn(state) * 0.1)
        self.down_weight = nn.Parameter(torch.randn(rows, state) * state**-0.5)
        self.up_weight = nn.Parameter(torch.randn(state, rank) * rank**-0.5)

    def forward(
        self, residual: torch.Tensor, block: torch.Tensor | None, injection: torch.Tensor | None, trace: Trace
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Gives the state, the next block's input, and the next boundary's injection (None after the last)."""
        arguments = (residual, block, injection, self.norm_weight, self.down_weight, self.up_weight)
        x, block_input, injection_out = dispatch.hyper_connection(
            *arguments, kind=self.kind, branches=BRANCHES
        )
        trace.inputs.append(arguments)
        trace.outputs.append((x, block_input, injection_out))
        return residual if x is None else x, block_input, injection_out


Cache = tuple[torch.Tensor, torch.Tensor]
"""Keys and values so far, each `[heads, tokens, width]`."""


class Attention(nn.Module):
    """Causal self-attention of one sequence: all of a prompt at once, then token by token."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Cache]:
        """`[tokens, hidden]` to the same, and the longer cache."""
        q, k, v = self.qkv(x).view(x.shape[0], 3, self.heads, -1).permute(1, 2, 0, 3)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 1), torch.cat([cache[1], v], 1)
        attention = nn.functional.scaled_dot_product_attention
        mixed = attention(q[None], k[None], v[None], is_causal=cache is None)[0]
        return self.out(mixed.transpose(0, 1).reshape(x.shape)), (k, v)


class Decoder(nn.Module):
    """Attention and MLP blocks with a boundary in front of each, and the final mixer."""

    def __init__(self, vocabulary: int, layers: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.attention = nn.ModuleList(Attention(hidden, heads=4) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(
                nn.Linear(hidden, 2 * hidden, bias=False),
                nn.SiLU(),
                nn.Linear(2 * hidden, hidden, bias=False),
            )
            for _ in range(layers)
        )
        kinds = ["first", *["boundary"] * (2 * layers - 1), "final"]
        self.boundaries = nn.ModuleList(HyperConnection(hidden, rank, kind) for kind in kinds)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(
        self, tokens: torch.Tensor, caches: list[Cache] | None
    ) -> tuple[torch.Tensor, list[Cache], Trace]:
        """`[tokens]` to logits `[tokens, vocabulary]`, the caches, and what the op was called with."""
        trace, longer = Trace(), []
        state = self.embedding(tokens).repeat(1, BRANCHES)
        block = injection = None
        for layer, (attention, mlp) in enumerate(zip(self.attention, self.mlp, strict=True)):
            before, between = self.boundaries[2 * layer], self.boundaries[2 * layer + 1]
            state, block_input, injection = before(state, block, injection, trace)
            block, cache = attention(block_input, None if caches is None else caches[layer])
            longer.append(cache)
            state, block_input, injection = between(state, block, injection, trace)
            block = mlp(block_input)
        _, mixed, _ = self.boundaries[-1](state, block, injection, trace)
        return self.head(mixed), longer, trace


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Equal as integers; None equals None."""
    if one is None or other is None:
        return one is other
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def replays(trace: Trace, kinds: list[str]) -> int:
    """Call the op eagerly on traced inputs, and count the results that have the same bits.

    Raises:
        AssertionError: one hasn't.
    """
    compared = 0
    for kind, inputs, outputs in zip(kinds, trace.inputs, trace.outputs, strict=True):
        again = dispatch.hyper_connection(*inputs, kind=kind, branches=BRANCHES)
        for one, other in zip(again, outputs, strict=True):
            assert same_bits(one, other), f"kind {kind}: results of equal inputs differ"
            compared += one is not None
    return compared


def main() -> None:
    """Decode, eagerly and compiled, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=2560 if torch.cuda.is_available() else 256)
    parser.add_argument("--rank", type=int, default=320 if torch.cuda.is_available() else 32)
    parser.add_argument("--tokens", type=int, default=4, help="how many are decoded")
    options = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Decoder(512, options.layers, options.hidden, options.rank).to(device, torch.float16).eval()
    kinds = [boundary.kind for boundary in model.boundaries]
    dispatch.warm_up()
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for name, run in (("eager", model), ("compiled", compiled)):
        tokens, caches, decoded = torch.tensor([1, 2, 3], device=device), None, []
        compared, start = 0, time.perf_counter()
        with torch.inference_mode():
            for _ in range(options.tokens):
                logits, caches, trace = run(tokens, caches)
                tokens = logits[-1:].argmax(-1)
                decoded += tokens.tolist()
                compared += replays(trace, kinds)
        seconds = time.perf_counter() - start
        print(f"{name}: tokens {decoded}, {compared} results bit for bit as the op alone, {seconds:.1f} s")
    print(dispatch.stats())


if __name__ == "__main__":
    main()
