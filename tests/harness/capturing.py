"""A thread that captures graphs of matmuls, in torch's default mode, while the thread of the test does something."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

WAIT_SECONDS = 120


def failures_beside_captures(call: Callable[[int], object], captures: int = 20) -> list[str]:
    """Call `call(turn)` inside each of so many captures of another thread; gives what failed on either side.

    A capture that a call has invalidated is one failure, a call that raised another.
    """
    inside, served = (threading.Barrier(2) for _ in range(2))
    failures: list[str] = []

    def capture() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            x = torch.randint(-1, 2, (64, 64), device="cuda").half()
            expected = x @ x  # what cuBLAS needs on the stream is there from now on
            stream.synchronize()
            for turn in range(captures):
                graph = torch.cuda.CUDAGraph()
                try:
                    graph.capture_begin()
                    found = x @ x
                    inside.wait(WAIT_SECONDS)
                    served.wait(WAIT_SECONDS)
                    again = x @ x
                    graph.capture_end()
                    graph.replay()
                    stream.synchronize()
                    if not torch.equal(found, expected) or not torch.equal(again, expected):
                        failures.append(f"capture {turn}: wrong products")
                except threading.BrokenBarrierError:
                    raise
                except Exception as error:
                    failures.append(f"capture {turn}: {error}")
                    _leave(graph)

    thread = threading.Thread(target=capture)
    thread.start()
    for turn in range(captures):
        inside.wait(WAIT_SECONDS)
        try:
            call(turn)
        except Exception as error:
            failures.append(f"call {turn}: {error}")
        served.wait(WAIT_SECONDS)
    thread.join()
    torch.cuda.synchronize()
    return failures


def _leave(graph: torch.cuda.CUDAGraph) -> None:
    """End a capture that was invalidated, as far as it hasn't ended."""
    if torch.cuda.is_current_stream_capturing():
        try:
            graph.capture_end()
        except Exception:
            return
