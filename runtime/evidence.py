"""What a workload's records say about one build on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..table import Build, DeviceKind, RecordLine, Workload
from .device import Device


@dataclass(frozen=True, slots=True)
class Standing:
    """The evidence about one build, sorted by what dispatch asks of it."""

    here: RecordLine | None
    """The record of this machine code on this kind of device that counts: the last one that isn't `invalid`."""
    verified_on: DeviceKind | None
    """A kind of device on which this source passed exactness, this one first; None where none did."""
    verified_here: bool
    mismatched_on: DeviceKind | None
    """A kind of device on which this source failed exactness."""
    stale: RecordLine | None
    """The last record of another source of this candidate on this kind of device."""
    prior: RecordLine | None = None
    """The same for this source as another compiler made it, where this machine code has none."""
    compiler: str | None = None
    """Version of the NVRTC whose machine code would run; None where it isn't known, or no record asks for it."""
    elsewhere: tuple[int, int] | None = None
    """Another part of the interval that this source was measured in on this kind of device."""


def standing(
    workload: Workload,
    candidate: str,
    build: Build,
    device: Device,
    part: tuple[int, int] | None = None,
    compiler_of: Callable[[], str | None] = lambda: None,
) -> Standing:
    """Sort the records of `candidate` for the source of `build`.

    Exactness counts wherever it was shown, because a source has the same bits on every device
    (docs/numerics.md); a verdict counts on the kind of device where it was measured, for what the compiler made that
    was measured: the same source by another NVRTC is other machine code, of which the record is a prior. Both count
    for the part of the workload's interval that was measured, but a failure counts for all of it.

    `compiler_of` gives the version of the NVRTC whose machine code would run; where it isn't known, as on a device
    that is only imagined, every record counts as it is.
    """
    kind = device.kind
    mine = [record for record in workload.records if record.candidate == candidate]
    fresh = [record for record in mine if record.code == build.code]
    mine_here = [record for record in mine if record.device == kind and record.part == part]
    of_part = [record for record in fresh if record.part == part]
    here = [record for record in of_part if record.device == kind]
    elsewhere = [record.part for record in fresh if record.device == kind and record.part not in (None, part)]
    compiler = compiler_of() if any(record.compiler for record in here) else None
    same = [record for record in here if compiler is None or record.compiler in (None, compiler)]
    counted = _telling(same)
    prior = _telling([record for record in here if record not in same])
    stale = [record for record in mine_here if record.code != build.code]
    passed = [record.device for record in (*here, *of_part) if record.exact]
    # A candidate that fails exactness isn't timed; one that was only timed has shown nothing either way.
    failed = [
        record.device
        for record in (*here, *fresh)
        if not record.exact and record.verdict == "rejected" and record.gain is None
    ]
    return Standing(
        here=counted,
        prior=prior if counted is None or counted.verdict == "invalid" else None,
        compiler=compiler,
        verified_on=passed[0] if passed else None,
        verified_here=any(record.exact for record in here),
        mismatched_on=failed[0] if failed else None,
        stale=stale[-1] if stale else None,
        elsewhere=elsewhere[-1] if elsewhere else None,
    )


def _telling(records: Sequence[RecordLine]) -> RecordLine | None:
    """The last record that isn't `invalid`, else the last one."""
    telling = [record for record in records if record.verdict != "invalid"] or records
    return telling[-1] if telling else None


def unmeasured(found: Standing, build: Build, device: Device) -> str:
    """Why policy `measured` doesn't take this build, in words."""
    record = found.prior or found.here
    if record is not None:
        gain = "" if record.gain is None else f" (gain {record.gain:+.1%} over the control)"
        verdict = record.verdict.replace("_", " ")
        basis = f"; {record.basis}" if record.basis else ""
        return f"its record on {device}{_as_a_prior(found)} says {verdict}{gain}{basis}"
    if found.stale is not None:
        code = found.stale.code
        measured = "code without a digest" if code is None else f"code {code[:8]}..."
        return f"the record is stale: it measured {measured}, this is code {build.code[:8]}..."
    if found.elsewhere is not None:
        low, high = found.elsewhere
        return f"its record on {device} covers {low} to {high}, another part"
    return f"no record on {device} for this source"


def admission(found: Standing, device: Device) -> str:
    """What an admitted record says of this build, in words; a prior is said to be one."""
    record = found.prior or found.here
    assert record is not None
    gain = f"a gain of {record.gain or 0.0:.1%} over the control"
    notes = [f"NVRTC {record.compiler}"] if record.compiler and found.compiler is None else []
    notes += [record.basis] if record.basis else []
    text = f"admitted on {device} with {gain}" + (f" ({'; '.join(notes)})" if notes else "")
    if found.prior is not None:
        text = (
            f"a prior: {text} as NVRTC {record.compiler} made it; NVRTC {found.compiler} makes it here, which has no "
            "record"
        )
    if record.unconfirmed:
        text += f"; {record.unconfirmed} stays in front, for no run of both shows this one to be faster"
    return text


def _as_a_prior(found: Standing) -> str:
    if found.prior is None:
        return ""
    return f", a prior because it is of NVRTC {found.prior.compiler} and here is {found.compiler},"
