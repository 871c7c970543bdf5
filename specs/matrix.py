"""Schedule options of matrix-vector kernels, shared by all routes that have such kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from .base import Count, Model
from .errors import Finding
from .tiling import RowTiling, TilingError


class MatrixOptions(Model):
    """How a matrix-vector kernel is spread; what isn't stated is resolved by `tiling.row_tiling`."""

    ctas: Count | None = None
    """Grid size; a CTA strides over the tiles of rows. Default: one CTA a tile."""
    threads: Count | None = None
    """Threads of a CTA."""
    load_bytes: Literal[2, 4, 8, 16] | None = None
    """Bytes that a thread loads from the weights at once."""
    rows_per_cta: Count | None = None
    """Rows that a CTA works on at once. Default: one row a team."""

    def over(self, flat: MatrixOptions) -> dict[str, Any]:
        """Give these options; what isn't stated here comes from `flat`."""
        return {
            name: getattr(flat if getattr(self, name) is None else self, name)
            for name in MatrixOptions.model_fields
        }


def tiling_findings(
    tilings: Mapping[str, Callable[[], RowTiling]], tables: Mapping[str, MatrixOptions | None]
) -> Iterator[Finding]:
    """Find options that fit no tiling.

    Args:
        tilings: makes the tiling of a kernel, by the kernel's name.
        tables: the kernel's own table of options, by the table's key; the message points at the option's key
            there, or at the flat one if the table doesn't state it.
    """
    for kernel, make in tilings.items():
        try:
            make()
        except TilingError as error:
            table = tables.get(kernel)
            own = table is not None and getattr(table, error.option) is not None
            path = (kernel, error.option) if own else (error.option,)
            yield Finding(path, f"{kernel}: {error}")
