"""Identity of generated code: one digest of all that decides what runs, and of nothing else.

It covers the tokens of the text, the launches, the contract of the workload and the compiler's flags. Comments,
layout, the header, names of Python modules and attributes, budgets and expectations don't enter. The workload's
interval doesn't either: it says for which calls a cell is asked, which the workload's label states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..compiler.nvrtc import FLAGS
from ..specs import CandidateSpec, WorkloadSpec
from .lowering import Lowering

VERSION = 1
"""Version of the document's layout. The keys below are that layout: renaming one changes every digest."""


def code_digest(
    workload: WorkloadSpec,
    candidate: CandidateSpec,
    lowering: Lowering,
    symbols: Mapping[str, str],
    tokens_sha256: str,
    arch: str,
    flags: tuple[str, ...] = FLAGS,
) -> str:
    """SHA-256 of the canonical JSON of one candidate's code for one architecture."""
    document = {
        "version": VERSION,
        "tokens": tokens_sha256,
        "contract": _contract(workload, candidate),
        "lowering": _lowering(candidate, lowering, symbols),
        "compiler": {"arch": arch, "flags": flags},
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _contract(workload: WorkloadSpec, candidate: CandidateSpec) -> dict[str, Any]:
    """What fixes the right answer, and how near to it the candidate must stay."""
    cells = workload.SHORT_FORM.values()
    bounds = candidate.tolerance
    return {
        "family": workload.family,
        "fields": {
            name: value
            for name, value in workload.fields().items()
            if not (isinstance(value, tuple) and name in cells)
        },
        "trees": {name: tree.to_list() for name, tree in workload.trees().items()},
        "contract": candidate.contract,
        "tolerance": {} if bounds is None else bounds.model_dump(exclude_none=True),
    }


def _lowering(candidate: CandidateSpec, lowering: Lowering, symbols: Mapping[str, str]) -> dict[str, Any]:
    """What is launched, on which memory, and what the op reads of the schedule."""
    return {
        "route": candidate.route,
        "kernels": {
            name: {
                "symbol": symbols[name],
                "grid": launch.grid,
                "block": launch.block,
                "args": launch.args,
                "shared_bytes": launch.shared_bytes,
                "programmatic": launch.programmatic,
                "resident": launch.resident,
                "cooperative": launch.cooperative,
            }
            for name, launch in lowering.kernels.items()
        },
        "steps": dict(lowering.steps),
        "scratch": _buffers(lowering.scratch),
        "state": _buffers(lowering.state),
        "arguments": dict(lowering.arguments),
        "options": dict(lowering.options),
        "capabilities": lowering.capabilities,
        "channel": dict(lowering.channel),
    }


def _buffers(buffers: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, Any]:
    return {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in buffers.items()}
