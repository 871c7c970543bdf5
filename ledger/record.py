"""What was measured of one candidate in one cell on one device: a line of evidence."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ..specs import Arch, Model
from ..specs.base import LABEL, SHA256, Count, Size, Slug

SCHEMA = 1
"""Version of the record model; a record states the one it was written for."""

Verdict = Literal["admitted", "rejected", "invalid", "no_difference"]
Sha256 = Annotated[str, Field(pattern=SHA256)]


class Device(Model):
    """What a measurement is valid for: the same architecture, SM count and name."""

    arch: Arch
    sm_count: Count
    name: Annotated[str, Field(min_length=1, max_length=128)]


class Exactness(Model):
    """The comparison with the control, bit for bit."""

    cases: Size
    """Inputs that were compared; 0 if exactness wasn't checked."""
    mismatches: Size
    """Stored values that differed in bits."""

    @property
    def exact(self) -> bool:
        """Whether at least one case was compared and none differed."""
        return self.cases > 0 and self.mismatches == 0


class Record(Model):
    """One record of the ledger; losers are kept."""

    schema_version: Literal[1]
    family: Slug
    spec: Slug
    workload: Annotated[str, Field(pattern=LABEL, max_length=128)]
    """Label of the concrete workload, `fp16-hc4-h2560-n1-r320-tp1`."""
    candidate: Slug
    device: Device
    source_sha256: Sha256
    """Digest of the generated source; a record of another source is stale."""
    exactness: Exactness
    verdict: Verdict
    gain: Annotated[float, Field(strict=True, le=1, allow_inf_nan=False)] | None = None
    """Time saved over the control, as a fraction of the control's time; None if it wasn't timed."""
    reason: Annotated[str, Field(min_length=1, max_length=1000)]
    """Why the verdict is what it is, a sentence."""

    @model_validator(mode="after")
    def _consistent(self) -> Record:
        if self.verdict == "admitted" and not self.exactness.exact:
            raise ValueError(
                f"the verdict is admitted, but exactness has {self.exactness.mismatches} mismatches in "
                f"{self.exactness.cases} cases; an admitted candidate was compared and never differed."
            )
        if self.verdict == "admitted" and (self.gain is None or self.gain <= 0):
            raise ValueError(f"the verdict is admitted, but the gain is {self.gain}; it must be above 0.")
        return self
