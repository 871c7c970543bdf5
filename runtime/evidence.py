"""What a workload's records say about one build on one device."""

from __future__ import annotations

from dataclasses import dataclass

from ..table import Build, DeviceKind, RecordLine, Workload
from .device import Device


@dataclass(frozen=True, slots=True)
class Standing:
    """The evidence about one build, sorted by what dispatch asks of it."""

    here: RecordLine | None
    """The record of this source on this kind of device that counts: the last one that isn't `invalid`."""
    verified_on: DeviceKind | None
    """A kind of device on which this source passed exactness, this one first; None where none did."""
    verified_here: bool
    mismatched_on: DeviceKind | None
    """A kind of device on which this source failed exactness."""
    stale: RecordLine | None
    """The last record of another source of this candidate on this kind of device."""
    elsewhere: tuple[int, int] | None = None
    """Another part of the interval that this source was measured in on this kind of device."""


def standing(
    workload: Workload, candidate: str, build: Build, device: Device, part: tuple[int, int] | None = None
) -> Standing:
    """Sort the records of `candidate` for the source of `build`.

    Exactness counts wherever it was shown, because a source has the same bits on every device
    (docs/numerics.md); a verdict counts on the kind of device where it was measured. Both count for the
    part of the workload's interval that was measured, but a failure counts for all of it.
    """
    kind = device.kind
    mine = [record for record in workload.records if record.candidate == candidate]
    fresh = [record for record in mine if record.code == build.code]
    mine_here = [record for record in mine if record.device == kind and record.part == part]
    of_part = [record for record in fresh if record.part == part]
    here = [record for record in of_part if record.device == kind]
    elsewhere = [record.part for record in fresh if record.device == kind and record.part not in (None, part)]
    telling = [record for record in here if record.verdict != "invalid"]
    stale = [record for record in mine_here if record.code != build.code]
    passed = [record.device for record in (*here, *of_part) if record.exact]
    # A candidate that fails exactness isn't timed; one that was only timed has shown nothing either way.
    failed = [
        record.device
        for record in (*here, *fresh)
        if not record.exact and record.verdict == "rejected" and record.gain is None
    ]
    counted = telling or here
    return Standing(
        here=counted[-1] if counted else None,
        verified_on=passed[0] if passed else None,
        verified_here=any(record.exact for record in here),
        mismatched_on=failed[0] if failed else None,
        stale=stale[-1] if stale else None,
        elsewhere=elsewhere[-1] if elsewhere else None,
    )


def unmeasured(found: Standing, build: Build, device: Device) -> str:
    """Why policy `measured` doesn't take this build, in words."""
    if found.here is not None:
        gain = "" if found.here.gain is None else f" (gain {found.here.gain:+.1%} over the control)"
        verdict = found.here.verdict.replace("_", " ")
        return f"its record on {device} says {verdict}{gain}"
    if found.stale is not None:
        code = found.stale.code
        measured = "code without a digest" if code is None else f"code {code[:8]}..."
        return f"the record is stale: it measured {measured}, this is code {build.code[:8]}..."
    if found.elsewhere is not None:
        low, high = found.elsewhere
        return f"its record on {device} covers {low} to {high}, another part"
    return f"no record on {device} for this source"
