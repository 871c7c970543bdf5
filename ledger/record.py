"""What was measured of one candidate in one cell on one device: a line of evidence, sealed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ..specs import Model
from ..specs.base import LABEL, SHA256, Slug
from ..specs.errors import shown
from ..table import Scope, Verdict
from .facts import Exactness, Group, RecordedDevice, RecordedPart, Rule, Text, Timing, Toolkit
from .verdict import Judgement, judge

__all__ = [
    "SCHEMA",
    "SEALED",
    "Exactness",
    "Group",
    "Record",
    "RecordedDevice",
    "RecordedPart",
    "Rule",
    "Scope",
    "Timing",
    "Toolkit",
    "Verdict",
    "judgement_of",
    "make_record",
    "seal",
    "seal_of",
]

SCHEMA = 4
"""Version of the record model, the rule's arithmetic and the wording of its reasons included."""
SEALED = 2
"""The first version with samples and a seal; it had no parts, and is else the same."""
PARTS = 3
"""The first version with parts of an interval; it had no candidates under a tolerance."""


def _utc_second(text: str) -> str:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.utcoffset() != timedelta() or time.microsecond:
        raise ValueError(f"found {shown(text)}; a time is UTC to the second, as 2026-03-01T12:00:00Z.")
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


UtcSecond = Annotated[str, AfterValidator(_utc_second)]
"""A time as ISO text, UTC, to the second, kept in the one form that ends with Z: it sorts as text."""

Sha256 = Annotated[str, Field(pattern=SHA256)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Gain = Annotated[float, Field(strict=True, le=1, allow_inf_nan=False)]


class Record(Model):
    """One record of the ledger; losers are kept. Made by `make_record`, which computes the verdict."""

    schema_version: Literal[2, 3, 4]
    measured_at: UtcSecond
    family: Slug
    spec: Slug
    workload: Annotated[str, Field(pattern=LABEL, max_length=128)]
    """Label of the concrete workload, `fp16-hc4-h2560-n1-r320-tp1`."""
    part: RecordedPart | None = None
    """The part of the workload's interval that it covers; None where all of it is one cell."""
    candidate: Slug
    control: Slug
    """Name of what the candidate was compared with and timed against; its own for the control."""
    device: RecordedDevice
    toolkit: Toolkit
    source_sha256: Sha256
    """Digest of the generated source; a record of another source is stale.

    It alone decides what a record is of. The text states all that is run: the kernels, their launches (grid,
    block, arguments), steps, scratch and compiler flags.
    """
    control_source_sha256: Sha256 | None
    """Digest of the control's source; None where the control has no source (a callable)."""
    cubin_sha256: Sha256 | None
    """Digest of the machine code that ran; None where none did (the emulator)."""
    identity: Sha256 | None
    """Digest of canonical workload, candidate and target; None where version 1 didn't say.

    For readers, who find it in the head of the `.cu` and in the manifest: it says which lines of a spec were
    measured, also after a template has changed. Nothing is decided by it; `source_sha256` decides.
    """
    exactness: Exactness
    timing: Timing | None
    """All samples; None if the candidate wasn't timed."""
    rule: Rule
    verdict: Verdict
    gain: Gain | None
    """Time saved over the control, as a fraction of the control's time; None if it can't be told."""
    interval: tuple[Finite, Finite] | None
    """Confidence interval of the gain."""
    reason: Text
    """Why the verdict is what it is, a sentence."""
    sha256: Sha256
    """Seal: digest of the record without this field, as canonical JSON."""

    @model_validator(mode="after")
    def _version_has_them(self) -> Record:
        if self.schema_version < PARTS and self.part is not None:
            raise ValueError(f"found a part in a record of version {self.schema_version}, which had none.")
        if self.schema_version < SCHEMA and self.exactness.closeness is not None:
            raise ValueError(
                f"found a closeness in a record of version {self.schema_version}, which had none."
            )
        return self

    @property
    def span(self) -> tuple[int, int] | None:
        """Both ends of the part."""
        return None if self.part is None else self.part.span

    @property
    def is_control(self) -> bool:
        """Whether this is the control's own record."""
        return self.candidate == self.control


def make_record(
    *,
    measured_at: str,
    family: str,
    spec: str,
    workload: str,
    candidate: str,
    control: str,
    device: RecordedDevice,
    toolkit: Toolkit,
    source_sha256: str,
    control_source_sha256: str | None,
    cubin_sha256: str | None,
    identity: str,
    exactness: Exactness,
    timing: Timing | None,
    rule: Rule | None = None,
    part: RecordedPart | None = None,
) -> Record:
    """Judge what a run found and seal it. `rule` is the default rule unless given.

    Raises:
        pydantic.ValidationError: a fact that no record can hold, such as a name that isn't a slug.
    """
    facts = dict(locals())  # the parameters are named as the fields
    facts["rule"] = rule = rule or Rule()
    return seal(facts, judge(exactness, timing, rule, is_control=candidate == control))


def seal(facts: Mapping[str, object], judgement: Judgement) -> Record:
    """Make a record of facts and what was judged of them.

    Raises:
        pydantic.ValidationError: a fact that no record can hold.
    """
    draft = Record.model_validate(
        {
            **facts,
            "schema_version": SCHEMA,
            "verdict": judgement.verdict,
            "gain": judgement.gain,
            "interval": judgement.interval,
            "reason": judgement.reason,
            "sha256": "0" * 64,
        }
    )
    return draft.model_copy(update={"sha256": seal_of(draft)})


def seal_of(record: Record) -> str:
    """Digest of a record's canonical JSON without its seal.

    It detects edits and damage. Anyone can compute it, so it is no signature.
    """
    document = record.model_dump(mode="json", exclude={"sha256"})
    if record.schema_version < PARTS:
        del document["part"]
    if record.schema_version < SCHEMA:
        del document["exactness"]["closeness"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def judgement_of(record: Record) -> Judgement:
    """What the record's own rule makes of its own samples, whatever verdict it states."""
    return judge(record.exactness, record.timing, record.rule, record.is_control)
