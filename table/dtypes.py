"""Dtypes that buffers may have, by torch's names of them without `torch.`."""

from __future__ import annotations

from collections.abc import Mapping

ITEM_BYTES: Mapping[str, int] = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
}
"""Bytes of an element."""

SHORT_DTYPE: Mapping[str, str] = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
"""Short forms of the storage dtypes, as labels have them."""
