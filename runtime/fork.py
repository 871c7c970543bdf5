"""Processes that were forked from one with kernels loaded: CUDA would crash or hang there, so calls raise."""

from __future__ import annotations

import os

from .errors import ForkedProcess

happened = False
"""Whether this process was forked from one that had plans: its CUDA context isn't valid here. Calls check it."""

_plans = False


def used() -> None:
    """Note that this process has plans from now on."""
    global _plans
    _plans = True


def refuse() -> None:
    """Raise ForkedProcess if this process was forked from one that had plans."""
    if happened:
        raise ForkedProcess(
            "this process was forked from one that had kernels loaded, and a CUDA context doesn't survive a fork; "
            "start workers with the method `spawn` or `forkserver`, or fork before the first call on a GPU"
        )


def _note() -> None:
    global happened
    happened = happened or _plans


os.register_at_fork(after_in_child=_note)
