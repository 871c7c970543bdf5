"""Calls as programs make them: fresh outputs and given ones, addresses that come again and addresses that change.

`Plan.run`, which the gate's comparisons of every buffer need, is another path than that of a call, which reads
addresses from tensors, allocates, and launches graphs whose arguments it sets where they have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from .executable import Executable

CALLS = "calls"
GRAPH_LAUNCH = "calls launched as graphs"
AGAIN = 3
"""Calls with the same addresses: the third one changes nothing of a graph that the second has made."""


def results_of_calls(
    plan: Executable,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    prepare: Callable[[], None],
    *,
    remembers: bool,
) -> Iterator[tuple[str, Sequence[torch.Tensor]]]:
    """Call a plan in every way, each after `prepare`, which makes inputs as they should be and spoils outputs.

    Args:
        inputs, outputs: of the plan's signature.
        remembers: whether a call may depend on the addresses of calls before it, as on a GPU.

    Returns:
        Of each call, how it was made, and its results.
    """
    if inputs:  # else a call has to say where its outputs are
        prepare()
        yield "a call with fresh outputs", plan(inputs)
    if not remembers:
        prepare()
        plan(inputs, outputs)
        yield "a call with given outputs", outputs
        return
    for turn in range(AGAIN):
        prepare()
        plan(inputs, outputs)
        yield f"call {turn + 1} on the same addresses", outputs
    prepare()
    copies, results = ([tensor.clone() for tensor in tensors] for tensors in (inputs, outputs))
    plan(copies, results)
    yield "a call on other addresses", results
    prepare()
    plan(inputs, outputs)
    yield "a call on the first addresses again", outputs
