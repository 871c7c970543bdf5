"""Reading a few words of device memory periodically, without waiting for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .captures import beside_captures, side_stream

if TYPE_CHECKING:
    import torch


class AsyncRecord:
    """A few int32 words that kernels write, as they were a moment ago.

    A call that read them itself would wait: for a copy, and where the reading stream shares a hardware queue with
    kernels that wait for a peer, for these. So a read enqueues a copy into pinned memory and takes what the one
    before has copied. Other threads may be capturing.
    """

    def __init__(self, words: torch.Tensor) -> None:
        """Allocate what looking needs; `words` are int32 of any shape, those on a CPU are read as they are."""
        import torch

        self._words, self._asked = words, False
        if words.is_cuda:
            # What is made in inference mode can't be written to outside of it.
            with beside_captures(), torch.inference_mode(False):
                self._host: Any = torch.empty(words.shape, dtype=words.dtype, device="cpu", pin_memory=True)
                self._arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def look(self) -> list[Any] | None:
        """The words of the copy that was enqueued last, if it has arrived; enqueues the next one."""
        if not self._words.is_cuda:
            words: list[Any] = self._words.tolist()
            return words
        import torch

        with beside_captures():
            if self._asked and not self._arrived.query():
                return None
            found = self._host.tolist() if self._asked else None
            with torch.cuda.stream(_stream(self._words)):
                self._host.copy_(self._words, non_blocking=True)
                self._arrived.record()
            self._asked = True
            return found

    def read(self) -> list[Any]:
        """The words as they are now; waits for a copy, but not for the caller's stream."""
        return read(self._words)

    def forget(self) -> None:
        """Discard copies of the words that were made before the work that is on the current stream by now."""
        if self._words.is_cuda:
            import torch

            with beside_captures():
                _stream(self._words).wait_stream(torch.cuda.current_stream(self._words.device))
            self._asked = False

    def end(self) -> None:
        """Wait for the copy that is on its way, before the memory of the words is given back."""
        if self._asked and self._words.is_cuda:
            with beside_captures():
                self._arrived.synchronize()


def read(words: torch.Tensor) -> list[Any]:
    """Words of device memory as they are now; waits for a copy, but not for the caller's stream."""
    import torch

    if not words.is_cuda:
        return words.tolist()
    with beside_captures(), torch.cuda.stream(_stream(words)):
        return words.tolist()


def _stream(words: torch.Tensor) -> torch.cuda.Stream:
    return side_stream(words.device.index)
