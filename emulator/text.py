"""Facts that the emulator reads from a `.cu` text before compiling it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_KERNEL = re.compile(
    rf"__global__\s+(?:void\s+)?(?:__launch_bounds__\s*{_NESTED}\s*)?(?:void\s+)?(?:__launch_bounds__\s*{_NESTED}\s*)?"
    r"(\w+)\s*\("
)
_DYNAMIC = re.compile(
    r"extern\s+__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?([\w:\s]+?)\s+"
    r"(?:(?:__align__|alignas)\s*\([^)]*\)\s*)?(\w+)\s*\[\s*\]"
)
_WAITS = re.compile(r"\b__nv_atomic_\w+|\bgriddepcontrol\w*|\bglobaltimer\b|\bnanosleep\b|\b__nanosleep\b")
_TENSOR_CORES = re.compile(r"\bmma\.sync\b|\bwgmma\w*|\btcgen05\b|\bwmma\b|\bmma_(?:sync|m\d+n\d+k\d+)\w*")
_EMULATED = re.compile(
    r"\bmma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(?:f16\.f16|bf16\.bf16)\.f32|kernwright::emulator::mma_m16n8k16"
    r"|\bwgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.(?:f16\.f16|bf16\.bf16)"
    r"|\bwgmma\.(?:fence|commit_group|wait_group)\.sync\.aligned"
)


class TextUnsupported(Exception):
    """The text can't run on the emulator; the message says why and what to do instead."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What was found in a text; comments and strings don't count, but for tensor-core instructions in PTX."""

    symbols: tuple[str, ...]
    """Its kernels, in order."""
    waits: bool
    """Its CTAs may wait for each other: it names atomics, griddepcontrol or a timer."""
    dynamic_shared: tuple[str, str] | None
    """Element type and name of its dynamic shared memory."""


def facts(text: str, name: str) -> TextFacts:
    """Read what `TextFacts` holds.

    Raises:
        TextUnsupported: tensor-core instructions, no kernel, or two arrays of dynamic shared memory.
    """
    uncommented = _COMMENT_OR_STRING.sub(lambda match: match[0] if match[0][0] == '"' else " ", text)
    tensor = _TENSOR_CORES.search(_EMULATED.sub(" ", uncommented))
    if tensor is not None:
        raise TextUnsupported(
            f"{name} uses the tensor-core instruction {tensor[0]}, whose accumulation no specification pins "
            "down. The emulator runs mma.m16n8k16 and wgmma of FP16 and BF16 with FP32 sums alone: other such "
            "candidates are checked on a GPU, under their tolerance."
        )
    code = _COMMENT_OR_STRING.sub(lambda match: '""' if match[0][0] == '"' else " ", text)
    symbols = tuple(dict.fromkeys(_KERNEL.findall(code)))
    if not symbols:
        raise TextUnsupported(
            f'{name} defines no kernel; the emulator runs functions declared `extern "C" __global__ void`.'
        )
    arrays = sorted({(" ".join(kind.split()), array) for kind, array in _DYNAMIC.findall(code)})
    if len(arrays) > 1:
        listed = ", ".join(f"{kind} {array}[]" for kind, array in arrays)
        raise TextUnsupported(
            f"{name} declares several arrays of dynamic shared memory ({listed}); they are one memory: "
            "declare one and cut it up."
        )
    return TextFacts(symbols, _WAITS.search(code) is not None, arrays[0] if arrays else None)


def without_comments(text: str) -> str:
    """The text with comments blanked and lines kept: what decides its machine code and its line numbers."""
    return _COMMENT_OR_STRING.sub(
        lambda match: match[0] if match[0][0] == '"' else "\n" * match[0].count("\n"), text
    )
