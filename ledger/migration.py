"""Records of older versions, read as today's: what they kept is kept, what they didn't keep isn't made up.

Version 1 stated exactness, a verdict and a gain without samples and without a seal: anyone can type that a
candidate was exact and faster, and nobody can recompute it. So such a record is *invalid*, shows no exactness
and doesn't enter the dispatch table; the ledger still lists it, with what it claimed. Only a failure is believed: it
can take a candidate out of dispatch, and never put one in.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ..specs import Model
from ..specs.base import LABEL, Size, Slug
from ..table import Verdict
from .facts import Exactness, RecordedDevice, Rule, Toolkit
from .record import Gain, Record, Sha256, seal
from .verdict import Judgement, judge

UNDATED = "1970-01-01T00:00:00Z"
"""When a record of version 1 was measured: it didn't say, so that every other one is newer."""
UNKNOWN = "unknown"
"""What version 1 didn't say: the control's name and the versions of the toolkit."""


class ExactnessV1(Model):
    """The comparison with the control, bit for bit."""

    cases: Size
    mismatches: Size


class RecordV1(Model):
    """A record as version 1 wrote it."""

    schema_version: Literal[1]
    family: Slug
    spec: Slug
    workload: Annotated[str, Field(pattern=LABEL, max_length=128)]
    candidate: Slug
    device: RecordedDevice
    source_sha256: Sha256
    exactness: ExactnessV1
    verdict: Verdict
    gain: Gain | None = None
    reason: Annotated[str, Field(min_length=1, max_length=1000)]

    def migrate(self) -> Record:
        """Give the record in today's form; in memory only, the file stays as it is."""
        found = self.exactness
        exactness = Exactness(
            cases=found.cases if found.mismatches else 0,
            values=None if found.mismatches else 0,
            mismatches=found.mismatches,
            against="the control",
        )
        facts = {
            "measured_at": UNDATED,
            "family": self.family,
            "spec": self.spec,
            "workload": self.workload,
            "candidate": self.candidate,
            "control": UNKNOWN,
            "device": self.device,
            "toolkit": Toolkit(**dict.fromkeys(Toolkit.model_fields, UNKNOWN)),
            "source_sha256": self.source_sha256,
            "control_source_sha256": None,
            "cubin_sha256": None,
            "identity": None,
            "exactness": exactness,
            "timing": None,
            "rule": Rule(),
        }
        return seal(facts, self._judgement(exactness))

    def _judgement(self, exactness: Exactness) -> Judgement:
        if exactness.inexact or not self.exactness.cases:
            return judge(exactness, None, Rule(), is_control=False)
        cases = f"{self.exactness.cases} case{'' if self.exactness.cases == 1 else 's'}"
        gain = "" if self.gain is None else f" with a gain of {self.gain:+.1%}"
        reason = (
            f"The record was written as version 1, which kept no samples and has no seal: that it was exact in "
            f"{cases} and is {self.verdict.replace('_', ' ')}{gain} can't be recomputed; measure again."
        )
        return Judgement("invalid", None, None, reason)
