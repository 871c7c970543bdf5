"""The shortest path of a call: from tensors to the driver in one function, with all constants bound to it.

A call of a small kernel costs the host more than the kernel costs the GPU. So a call looks up nothing and makes no
list that its plan doesn't need: addresses go from the tensors straight into the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from . import fork, graph_launch
from .current import Allocate, allocator, capture_query, device_guard
from .launch import LaunchSequence, launch_again

if TYPE_CHECKING:
    import torch


class Serve(Protocol):
    """Computes the signature's outputs from its inputs, into fresh tensors unless outputs are given."""

    def __call__(
        self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None, /
    ) -> Sequence[torch.Tensor]: ...


Made = tuple[tuple[int, ...], tuple[int, ...], Any]
"""Shape, strides and dtype of a tensor that a call allocates."""


def direct(
    sequence: LaunchSequence,
    *,
    index: int,
    current: Callable[[], int] | None,
    stream_of: Callable[[int], int],
    given: int,
    alignment: int,
    misaligned: Callable[[Sequence[int]], NoReturn],
    made: Sequence[Made],
    scratch: Made | None,
    scratch_offsets: Sequence[int],
    check: Callable[[], None] | None,
    follow: Callable[[int], None] | None,
    state_of: Callable[[int], int] | None,
    state_offsets: Sequence[int],
) -> Serve:
    """Bind a call; None stands for a step that the plan doesn't have.

    Args:
        sequence: the launches; its values are inputs, outputs, parts of scratch and parts of state.
        current: gives the ordinal of the current device; None where it is always `index`.
        given: how many tensors are inputs or outputs.
        alignment: bytes, a power of two up to 256, that their addresses are multiples of.
        misaligned: raises the error for addresses that aren't.
        scratch_offsets: where its parts begin, bytes.
        state_offsets: where its parts begin, bytes.
    """
    frames = sequence.frames
    aligned = bytes(range(0, 256, alignment))
    left = bytes.translate
    empty: Allocate | None = None
    launch = graph_launch.launcher() if sequence.as_graph else None
    captured: Callable[[], bool] = bool if launch is None else capture_query()
    # A call whose addresses are those of the call before needs no look at them; but nothing is done before the look
    # that the next call would see.
    late = launch is not None and follow is None and state_of is None

    def serve(
        inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None, /
    ) -> Sequence[torch.Tensor]:
        nonlocal empty
        if fork.happened:
            fork.refuse()
        if current is not None and current() != index:
            with device_guard(index):
                return serve(inputs, outputs)
        if check is not None:
            check()
        if empty is None:
            empty = allocator((*inputs, *(outputs or ()))[0].device.type)
        if outputs is None:
            outputs = [empty(*one) for one in made]
        try:
            frame = frames.pop()
        except IndexError:  # other threads are calling
            frame = sequence.frame()
        try:
            values, place = frame.values, 0
            try:
                for tensor in inputs:
                    values[place] = tensor.data_ptr()
                    place += 1
                for tensor in outputs:
                    values[place] = tensor.data_ptr()
                    place += 1
            except IndexError:  # more than there is room for
                place = len(inputs) + len(outputs)
            if place != given:
                raise ValueError(
                    f"{place} tensors were given, and this plan takes {given}, inputs and outputs: pass those of its "
                    "signature, in its order"
                )
            if not late and left(frame.low_bytes.tobytes(), None, aligned):
                misaligned(values[:given])
            if scratch is not None:
                block = empty(*scratch)
                base = block.data_ptr()
                for offset in scratch_offsets:
                    values[place] = base + offset
                    place += 1
            stream = stream_of(index)
            if follow is not None:
                follow(stream)
            if state_of is not None:
                base = state_of(stream)
                for offset in state_offsets:
                    values[place] = base + offset
                    place += 1
            if launch is not None:
                now, graph = frame.given.tobytes(), frame.graphs.get(stream)
                if (
                    graph is not None
                    and graph.given == now
                    and not captured()
                    and not launch(graph.ready, stream)
                ):
                    return outputs  # the same addresses as in the call before
            if late and left(frame.low_bytes.tobytes(), None, aligned):
                misaligned(values[:given])
            try:
                if launch is None or captured() or not frame.as_graph(stream, now):
                    for launcher, parameters in frame.launches:
                        launcher(stream, parameters, 0)
            except Exception as error:
                launch_again(frame, stream, error)
            return outputs
        finally:
            frames.append(frame)

    return serve
