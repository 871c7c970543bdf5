"""Whether one candidate could serve a request, and if not, the reason with its values.

The checks run from the widest to the narrowest; the first that fails is the reason, and `Stage` says how far
that was.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from ..table import Build, Candidate, FieldValue, Part, RecordLine, Workload
from .communicator import Communicator, objection
from .device import Device, serves
from .evidence import Standing, admission, standing, unmeasured
from .policy import Policy
from .request import Request

LoadKey = tuple[str, str, int | None]
"""A build on a device: source digest, architecture, CUDA ordinal (None for an imagined device)."""

CompilerOf = Callable[[Build, str], str | None]
"""Version of the NVRTC whose machine code of a build runs on an architecture; None where it isn't known."""


def unknown_compiler(_build: Build, _arch: str) -> None:
    """Of a device that is only imagined."""


Unusable = Mapping[LoadKey, str]
"""Builds that can't be loaded on a device of this machine, and why."""


class Stage(IntEnum):
    """How far a candidate got before it was rejected."""

    SHAPE = 0
    INTERVAL = 1
    LAYOUT = 2
    KIND = 3
    DEVICE = 4
    COMMUNICATOR = 5
    CONTRACT = 6
    LOADING = 7
    EVIDENCE = 8
    ELIGIBLE = 9


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that can't serve the request here under this policy."""

    stage: Stage
    cause: str
    """What statistics count it under: a field's name, or the check."""
    reason: str
    mismatches: int = 0
    """Fields of the request that the workload doesn't have so."""


@dataclass(frozen=True, slots=True)
class Eligible:
    """A candidate that could serve; the smallest `rank`, then the largest `gain`, is chosen."""

    arch: str
    build: Build
    rank: int
    """0 admitted, be it as a prior; 1 the same, but not confirmed against the winner; 2 verified; 3 the control."""
    gain: float
    standing: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """Everything a decision depends on apart from the table and the request."""

    device: Device
    policy: Policy
    comm: Communicator | None
    exact: bool
    unusable: Unusable
    compiler_of: CompilerOf = unknown_compiler


def judge(
    workload: Workload, candidate: Candidate, request: Request, given: Conditions
) -> Rejected | Eligible:
    """Decide on one candidate."""
    mismatches = list(_shape_objections(workload, request, given.comm))
    if mismatches:
        return replace(mismatches[0], mismatches=len(mismatches))
    if request.problems:
        return Rejected(Stage.LAYOUT, "layout", request.problems[0])
    if request.kind not in candidate.steps:
        served = ", ".join(candidate.steps)
        return Rejected(Stage.KIND, "kind", f"kind is {request.kind}; this candidate serves {served}")
    arch = serves(candidate.builds, given.device.arch)
    if arch is None:
        built = ", ".join(candidate.builds)
        return Rejected(
            Stage.DEVICE,
            "device",
            f"the device is {_arch(given.device)}; this candidate is built for {built}",
        )
    build = candidate.builds[arch]
    rejected = _machine_objection(workload, candidate, (build.code, arch, given.device.index), given)
    if rejected is not None:
        return rejected
    part = part_for(workload, request, given.device)
    if part is not None and part.route != candidate.route:
        return Rejected(
            Stage.EVIDENCE,
            "threshold",
            f"{workload.interval} is {request.fields[workload.interval or '']}, and {_span(part)} take route "
            f"{part.route}{_tuned(part)}",
        )
    return _judge_evidence(workload, candidate, arch, build, given, part)


def part_for(workload: Workload, request: Request, device: Device) -> Part | None:
    """The part of the workload's interval that a request lies in on a device; None without parts."""
    value = request.fields.get(workload.interval or "")
    return workload.part_of(value, device.name) if isinstance(value, int) else None


def _span(part: Part) -> str:
    return f"{part.low} to {part.high}"


def _tuned(part: Part) -> str:
    if part.measured:
        return f" (tuned on {part.device})"
    return " (a threshold that wasn't measured on this device)"


def _shape_objections(workload: Workload, request: Request, comm: Communicator | None) -> Iterator[Rejected]:
    for name, got in request.fields.items():
        served = workload.fields[name]
        stage = Stage.INTERVAL if isinstance(served, tuple) else Stage.SHAPE
        if name == "world_size" and served != 1 and comm is None:
            reason = f"world_size is {served}, which needs a communicator; none was given"
            yield Rejected(Stage.SHAPE, "communicator", reason)
        elif not _matches(got, served):
            yield Rejected(stage, name, f"{name} is {got}; {_serving(served)}")


def _matches(got: FieldValue, served: FieldValue) -> bool:
    if isinstance(served, tuple):
        return isinstance(got, int) and served[0] <= got <= served[1]
    if isinstance(served, float) and isinstance(got, (int, float)):
        # Kernels see an FP32 value: two decimals that round to the same one are the same eps.
        return struct.pack("<f", got) == struct.pack("<f", served)
    return got == served


def _serving(served: FieldValue) -> str:
    if isinstance(served, tuple):
        low, high = served
        return f"this candidate serves {low}" if low == high else f"this candidate serves {low} to {high}"
    return f"this workload is {served}" if isinstance(served, str) else f"this workload has {served}"


def _arch(device: Device) -> str:
    return device.arch or str(device)


def _machine_objection(
    workload: Workload, candidate: Candidate, build: LoadKey, given: Conditions
) -> Rejected | None:
    sms = given.device.sm_count
    if sms is not None and sms < candidate.min_sms:
        reason = f"the device has {sms} SMs; this candidate needs {candidate.min_sms}"
        return Rejected(Stage.DEVICE, "device", reason)
    reason = objection(candidate.capabilities, workload.spec, given.comm) or ""
    if reason:
        return Rejected(Stage.COMMUNICATOR, "communicator", reason)
    if given.exact and candidate.contract != "exact":
        reason = f"its contract is {candidate.contract}; exact=True was asked for"
        return Rejected(Stage.CONTRACT, "contract", reason)
    if build in given.unusable:
        return Rejected(Stage.LOADING, "loading", given.unusable[build])
    return None


def _judge_evidence(
    workload: Workload,
    candidate: Candidate,
    arch: str,
    build: Build,
    given: Conditions,
    part: Part | None,
) -> Rejected | Eligible:
    policy, device = given.policy, given.device
    if policy == "reference":
        return _rejected("policy reference uses torch only")
    is_control = candidate is workload.control_of(part)
    if policy == "control" and not is_control:
        return _rejected("policy control dispatches the control only")
    span = None if part is None else part.span
    found = standing(workload, candidate.name, build, device, span, lambda: given.compiler_of(build, arch))
    record = found.prior or found.here
    if candidate.contract == "exact" and found.mismatched_on is not None:
        return _rejected(f"this source failed exactness on {found.mismatched_on}")
    if policy != "control" and record is not None and record.verdict == "admitted" and not is_control:
        words = admission(found, device) + _nearness(candidate, record)
        return Eligible(arch, build, int(bool(record.unconfirmed)), record.gain or 0.0, words)
    if is_control:
        of = f" of {_span(part)}{_tuned(part)}" if part else ""
        return Eligible(arch, build, 3, 0.0, _control_standing(found, device, of))
    if policy == "measured":
        reason = unmeasured(found, build, device) + _nearness(candidate, record)
        return _rejected(f"{reason}; policy measured dispatches admitted candidates only")
    if found.verified_on is None:
        return _rejected(
            "no exactness record for this source; policy verified dispatches candidates that passed exactness"
        )
    verified = f"verified for this source on {found.verified_on}{_nearness(candidate, record)}"
    return Eligible(arch, build, 2, 0.0, verified)


def _nearness(candidate: Candidate, record: RecordLine | None) -> str:
    """How near to FP64 a candidate under a tolerance must stay, and what was measured; empty for an exact one."""
    if candidate.contract == "exact" or not candidate.tolerance:
        return ""
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in candidate.tolerance.items())
    text = f"; under a tolerance, {bounds} from FP64"
    if record is None or not record.distances:
        return text
    measured = (
        f"{name} {own:.2e}" + ("" if eager is None else f" (torch eager {eager:.2e})")
        for name, (own, eager) in record.distances.items()
    )
    return f"{text}: {', '.join(measured)}"


def _control_standing(found: Standing, device: Device, of: str) -> str:
    if found.verified_here:
        return f"the control{of}, verified for this source on {device}"
    return f"the control{of}, unverified: no exactness record on {device} for this source"


def _rejected(reason: str) -> Rejected:
    return Rejected(Stage.EVIDENCE, "evidence", reason)
