"""Which instructions the compiler chose: a candidate's expectations against `nvdisasm`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..files import write_whole
from . import trusted

_DEPRECATED = "is deprecated"
"""What nvdisasm 13.1 and later say of architectures before sm_75."""


@dataclass(frozen=True)
class ExpectationsSkipped:
    """The machine code can't be read here."""

    reason: str
    """A sentence for the author of the expectation."""


class DisassemblyFailed(Exception):
    """nvdisasm doesn't take a cubin that it should be able to read."""


def instruction_counts(cubin: bytes, arch: str) -> dict[str, Counter[str]] | ExpectationsSkipped:
    """How often each instruction stands in each kernel, by symbol.

    Args:
        cubin: whole (see `cubin.repair`).
        arch: what it was compiled for.

    Returns:
        Opcodes with their modifiers (`LDG.E.128.CONSTANT`), device functions counted with the kernel that
        they were cloned for. `ExpectationsSkipped` without an nvdisasm, or if it doesn't read this architecture.

    Raises:
        DisassemblyFailed: nvdisasm reports another error.
    """
    text = _disassembled(cubin, arch, "-json")
    return text if isinstance(text, ExpectationsSkipped) else _count(text)


def reads_constant_bank(cubin: bytes, arch: str, bank: int) -> bool | ExpectationsSkipped:
    """Whether an instruction of a cubin reads a constant bank.

    Args:
        cubin: whole (see `cubin.repair`).
        arch: what it was compiled for.
        bank: 4 holds addresses of data at namespace scope.

    Raises:
        DisassemblyFailed: nvdisasm reports an error.
    """
    text = _disassembled(cubin, arch, "--print-code")
    return text if isinstance(text, ExpectationsSkipped) else f"c[{bank:#x}]" in text


def _disassembled(cubin: bytes, arch: str, option: str) -> str | ExpectationsSkipped:
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        return ExpectationsSkipped(
            "Expectations of the machine code aren't checked: there is no nvdisasm. "
            "It comes with pip install nvidia-cuda-nvdisasm, or with a CUDA toolkit."
        )
    with tempfile.TemporaryDirectory(prefix="kernwright-") as folder:
        path = Path(folder) / f"kernel.{arch}.cubin"
        path.write_bytes(cubin)
        command = [str(nvdisasm), option, str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0 and _DEPRECATED in ran.stderr:
        return ExpectationsSkipped(
            f"Expectations of the machine code aren't checked for {arch}: the installed nvdisasm doesn't "
            "read it (that of a CUDA toolkit 13.0 or earlier does)."
        )
    if ran.returncode != 0:
        raise DisassemblyFailed(f"{nvdisasm} can't read a cubin for {arch}. It says: {ran.stderr.strip()}")
    return ran.stdout


def remembered_counts(cubin: bytes, arch: str, folder: Path) -> dict[str, Counter[str]] | ExpectationsSkipped:
    """As `instruction_counts`, by way of a file below `folder`: nvdisasm takes half a second a cubin.

    A file that can't be read, trusted or written costs that time and nothing else; what was skipped isn't kept.
    """
    place = folder / "disassembly" / f"{hashlib.sha256(cubin).hexdigest()}.json"
    try:
        stored = json.loads(trusted.read(place))
        return {
            symbol: Counter({name: int(n) for name, n in found.items()}) for symbol, found in stored.items()
        }
    except (OSError, ValueError, AttributeError, TypeError):
        pass  # not there, or not whole
    counts = instruction_counts(cubin, arch)
    if isinstance(counts, dict):
        with contextlib.suppress(OSError):
            trusted.make_folder(place.parent)
            write_whole(place, json.dumps(counts).encode())
    return counts


def find_nvdisasm() -> Path | None:
    """The program from a wheel, a Conda environment or a toolkit (`CUDA_HOME`), or else on the `PATH`."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        found = None
    else:
        found = find_nvidia_binary_utility("nvdisasm")
    found = found or shutil.which("nvdisasm")
    return Path(found) if found else None


def _count(text: str) -> dict[str, Counter[str]]:
    """nvdisasm's JSON is `[about the file, [function, ...], ...]`."""
    _, *groups = json.loads(text)
    return {
        function["function-name"]: Counter(line["opcode"] for line in function["sass-instructions"])
        for group in groups
        for function in group
    }


def unmet(counts: Mapping[str, Mapping[str, int]], expect: Mapping[str, int]) -> list[str]:
    """One sentence, with both numbers, for each expectation that a kernel doesn't meet; empty when all are.

    Args:
        counts: as of `instruction_counts`; pass one kernel alone for an expectation of its own.
        expect: minimums by instruction. `LDG.E.128` also counts `LDG.E.128.CONSTANT`, but `LDG.E.1` doesn't
            count `LDG.E.128`: modifiers are compared whole.
    """
    return [
        f"{symbol} has {found} {prefix} instructions; at least {least} are expected"
        for symbol, instructions in counts.items()
        for prefix, least in expect.items()
        if (found := _matching(instructions, prefix)) < least
    ]


def _matching(instructions: Mapping[str, int], prefix: str) -> int:
    return sum(count for name, count in instructions.items() if f"{name}.".startswith(f"{prefix}."))
