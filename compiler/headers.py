"""The CUDA headers that kernels include, as text.

They are handed to NVRTC in memory, each under a `#line` with a fixed path. Otherwise their own
folder, or the working folder, would enter the cubin with `-lineinfo` as soon as a function of theirs is
inlined (`h2exp` and others do it), and two checkouts would make different cubins of the same source.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

ROOTS = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "math_constants.h")
"""What a generated kernel may include. Other headers of the toolkit (a team's own kernel may want
`cooperative_groups.h`) are still found by NVRTC, on the disk."""

FOLDER = "/cuda/include"
"""Where line tables say that the headers lie, on every machine."""

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


@functools.cache
def read_headers(include: Path) -> Mapping[str, bytes]:
    """Text by name, as NVRTC is to see it, of `ROOTS` and of what they include that lies in `include`."""
    found: dict[str, bytes] = {}
    wanted = list(reversed(ROOTS))
    while wanted:
        name = wanted.pop()
        path = include / name
        if name in found or not path.is_file():
            continue
        text = path.read_bytes()
        found[name] = f'#line 1 "{FOLDER}/{name}"\n'.encode() + text
        wanted += [match.decode() for match in _INCLUDE.findall(text)]
    return found


def headers_digest(headers: Mapping[str, bytes]) -> str:
    """SHA-256 over names and texts."""
    total = hashlib.sha256()
    for name in sorted(headers):
        total.update(f"{name}\0{len(headers[name])}\0".encode())
        total.update(headers[name])
    return total.hexdigest()
