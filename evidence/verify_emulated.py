"""`kernwright verify --on emulator`: every candidate, executed on the CPU, against the array oracle or FP64.

A run takes seconds, so by default a candidate gets one case of each kind of the op, and all kinds of
values for the first kind. Its builds are the same text for a CPU, so one represents all. What passed is
remembered by the digests of the source and of everything that judged it.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler import trusted
from ..compiler.cache import default_folder
from ..emulator import BufferMismatch as EmulatedMismatch
from ..emulator import DeviceBuffer, Interleaving, check
from ..emulator.launch import Array
from ..files import write_whole
from ..ledger import Closeness
from ..runtime.dispatch import Dispatch
from ..table import Candidate, Workload
from .calls import CALLS
from .emulated import EmulatedCase, emulated
from .emulated_calls import NoCalls, first_wrong_call
from .executable import ExecutableEvidence
from .failure import Failure, leave
from .family_evidence import Case, FamilyEvidence, serves
from .gate import NOTHING, Gate
from .tensors import as_torch
from .tolerance import AGAINST as TRUTH
from .tolerance import EAGER, NearTruth, under_tolerance
from .verify import Verification, Wanted, chosen_builds, chosen_cases, skipped, unasked

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Bits = NDArray[np.uint16]

ON_EMULATOR = "emulator"
AGAINST = "array oracle"
JUDGES = ("emulator", "evidence/oracle")
"""Folders of the package whose text decides a verification, whatever the family."""


def verify_emulated(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    wanted: Wanted,
    failures: Path,
    on_done: Callable[[Verification], None] = lambda _result: None,
) -> list[Verification]:
    """Verify candidates of a workload on the CPU; what fails leaves an artefact below `failures`.

    Raises:
        NothingToVerify: the filters leave nothing.
        CompilerMissing: no host compiler is installed.
    """
    cases = chosen_cases(evidence, workload, wanted) if wanted.cases else essential(evidence.cases(workload))
    results = []
    for candidate, arch in chosen_builds(workload, wanted, lambda candidate: next(iter(candidate.builds))):
        own = [case for case in cases if serves(workload, candidate, case)]
        if own and candidate.kernels:
            result = _remembered(dispatch, evidence, workload, candidate, arch, own, failures)
        else:
            reason = unasked(workload, candidate)
            if not candidate.kernels:
                reason = (
                    f"candidate {candidate.name} of {workload.label} has no kernel of ours, and the emulator runs no "
                    "library; verify it with --on cuda"
                )
            result = replace(skipped(workload, reason, ON_EMULATOR), candidate=candidate.name)
        on_done(result)
        results.append(result)
    return results


def essential(cases: Iterable[Case]) -> list[Case]:
    """Those that say so; where none does, the first kind of the op with all values, the others with normal ones."""
    listed = list(cases)
    if asked := [case for case in listed if case.on_emulator]:
        return asked
    first = listed[0].kind
    found: dict[tuple[str, str], Case] = {}
    for case in listed:
        if case.kind == first or case.inputs == "normal":
            found.setdefault((case.kind, case.inputs), case)
    return list(found.values())


def _remembered(
    dispatch: Dispatch,
    evidence: FamilyEvidence,
    workload: Workload,
    candidate: Candidate,
    arch: str,
    cases: Sequence[Case],
    failures: Path,
) -> Verification:
    facts = [
        candidate.builds[arch].code,
        repr(dict(workload.fields)),  # an interval decides which cases there are, and isn't part of the code
        judges_digest(Path(inspect.getfile(evidence.expected)).resolve().parent),
        *(c.name for c in cases),
    ]
    in_bits = not under_tolerance(candidate) or isinstance(evidence, ExecutableEvidence)
    near = None if in_bits else NearTruth(evidence, workload, candidate)
    place = default_folder() / "verified" / f"{hashlib.sha256(' '.join(facts).encode()).hexdigest()}.json"
    result = Verification(
        workload.label,
        candidate.name,
        arch,
        TRUTH if near else AGAINST,
        NOTHING,
        tuple(sorted({case.seed for case in cases})),
        0.0,
        on=ON_EMULATOR,
    )
    if passed := _recall(place, len(cases)):
        gate, closeness = passed
        return replace(result, gate=gate, closeness=closeness, cached=True)
    start = time.perf_counter()
    called: set[str] = set()
    for case in cases:
        run = emulated(dispatch, evidence, workload, candidate, arch, case)
        gate, arrays, problem = _run_case(run, case, near)
        if not problem and case.kind not in called:  # a call's path doesn't depend on values
            called.add(case.kind)
            with contextlib.suppress(NoCalls):
                wrong = first_wrong_call(dispatch, evidence, workload, candidate, arch, case, run, arrays)
                gate += Gate(0, 0, wrong is not None, wrong, (CALLS,))
                problem = f"{wrong}." if wrong else ""
        result = replace(result, gate=result.gate + gate, problem=problem)
        if problem:
            failure = Failure(workload.label, candidate.name, arch, ON_EMULATOR, problem, case)
            result = replace(result, artefact=leave(failures, failure, run.inputs))
            break
    result = replace(
        result, seconds=time.perf_counter() - start, closeness=None if near is None else near.closeness
    )
    if result.passed:
        near_to = None if result.closeness is None else result.closeness.model_dump(mode="json")
        with contextlib.suppress(OSError):  # a cache that can't be written or trusted is no failure
            trusted.make_folder(place.parent)
            document = {"values": result.gate.values, "closeness": near_to, "ways": result.gate.ways}
            write_whole(place, json.dumps(document).encode())
    return result


def _run_case(
    run: EmulatedCase, case: Case, near: NearTruth | None
) -> tuple[Gate, Mapping[DeviceBuffer, Array], str]:
    """What was found, what the launches stored, and a sentence where something is wrong."""
    checked = check(run.program.launches, run.expected, Interleaving())
    wrong = sum(problem.count for problem in checked.problems if isinstance(problem, EmulatedMismatch))
    gate = Gate(1, sum(array.size for array in run.expected.values()), wrong, None, ("launches",))
    if checked.problems:
        return gate, checked.arrays, f"{checked.problems[0]} Case {case.name}, {checked.schedule}."
    if near is None:
        return gate, checked.arrays, ""
    near_gate = replace(_near(near, case, run, checked.arrays), ways=gate.ways)
    outside = f"{near_gate.mismatches} values lie outside {near.closeness.bounds}; {near_gate.first}"
    return near_gate, checked.arrays, outside if near_gate.first else ""


def _near(near: NearTruth, case: Case, run: EmulatedCase, arrays: Mapping[DeviceBuffer, Array]) -> Gate:
    """What a candidate under a tolerance stored, against FP64."""
    truth = near.expected(case, run.inputs)
    found = {
        buffer.name: as_torch(array, buffer.dtype, next(iter(run.inputs.values())).device)
        for buffer, array in arrays.items()
        if buffer.name in truth
    }
    return near.compare(case, EAGER, found, truth)


@cache
def judges_digest(own: Path) -> str:
    """Digest of the text of the emulator, of the oracle, and of the evidence's own folder."""
    root = Path(__file__).resolve().parents[1]
    paths = {path for folder in JUDGES for path in (root / folder).rglob("*")} | set(own.rglob("*.py"))
    paths |= set(root.glob("families/*/oracle*.py"))  # a family may be held against another's, too
    sha = hashlib.sha256()
    for path in sorted(paths):
        if path.suffix in (".py", ".h", ".cpp"):
            sha.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha.hexdigest()


def _recall(place: Path, cases: int) -> tuple[Gate, Closeness | None] | None:
    """What passed before; None if it isn't there, not whole, or others may have written it."""
    try:
        stored = json.loads(trusted.read(place))
        values, near, ways = stored["values"], stored["closeness"], tuple(stored["ways"])
        closeness = None if near is None else Closeness.model_validate(near)
    except (OSError, ValueError, KeyError, TypeError):  # pydantic's errors are ValueErrors
        return None
    passed = isinstance(values, int) and values > 0
    return (Gate(cases, values, 0, None, ways), closeness) if passed else None
