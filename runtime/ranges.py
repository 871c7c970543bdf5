"""Ranges that a profiler shows, one a call, where `KERNWRIGHT_NVTX=1`.

Whether there are ranges is settled when a call is decided: without them, later calls check nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from .errors import InvalidSetting
from .settings import switch

if TYPE_CHECKING:
    import torch

    from .request import Runner

NVTX_VARIABLE = "KERNWRIGHT_NVTX"


@cache
def enabled() -> bool:
    """Whether `KERNWRIGHT_NVTX=1`; read once, by `switch`."""
    return switch(NVTX_VARIABLE, default=False)


def ranged(run: Runner, label: str) -> Runner:
    """`run`, inside a range of that label if ranges are wanted; InvalidSetting where this torch has no NVTX."""
    if not enabled():
        return run
    import torch

    nvtx: Any = torch.cuda.nvtx
    try:
        nvtx.range_push(label)
        nvtx.range_pop()
    except RuntimeError as error:
        raise InvalidSetting(
            f"{NVTX_VARIABLE} is 1, and this torch has no NVTX ({error}): unset it"
        ) from error

    def in_range(
        inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor] | None
    ) -> Sequence[torch.Tensor]:
        nvtx.range_push(label)
        try:
            return run(inputs, outputs)
        finally:
            nvtx.range_pop()

    return in_range
