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
        """Watch `words`, int32 of any shape; those on a CPU are read as they are."""
        self._words, self._asked = words, False
        self._host: Any = None
        self._arrived: Any = None

    def look(self) -> list[Any] | None:
        """The words of the copy that was enqueued last, if it has arrived; enqueues the next one."""
        if not self._words.is_cuda:
            words: list[Any] = self._words.tolist()
            return words
        import torch

        with beside_captures():
            if self._host is None:
                with torch.inference_mode(False):  # what is made inside of it can't be written to outside
                    self._host = torch.empty(
                        self._words.shape, dtype=self._words.dtype, device="cpu", pin_memory=True
                    )
                self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            if self._asked and not self._arrived.query():
                return None
            found = self._host.tolist() if self._asked else None
            with torch.cuda.stream(self._stream):
                self._host.copy_(self._words, non_blocking=True)
                self._arrived.record()
            self._asked = True
            return found

    def read(self) -> list[Any]:
        """The words as they are now; waits for a copy, but not for the caller's stream."""
        import torch

        if not self._words.is_cuda:
            return self.look() or []
        with beside_captures(), torch.cuda.stream(self._stream):
            words: list[Any] = self._words.tolist()
        return words

    def forget(self) -> None:
        """Discard copies of the words that were made before the work that is on the current stream by now."""
        if self._words.is_cuda:
            import torch

            with beside_captures():
                self._stream.wait_stream(torch.cuda.current_stream(self._words.device))
            self._asked = False

    def end(self) -> None:
        """Wait for the copy that is on its way, before the memory of the words is given back."""
        if self._asked and self._words.is_cuda:
            with beside_captures():
                self._arrived.synchronize()

    @property
    def _stream(self) -> torch.cuda.Stream:
        return side_stream(self._words.device.index)
