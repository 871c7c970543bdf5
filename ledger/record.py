"""What was measured of one candidate in one cell on one device: a line of evidence, sealed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from ..specs import Model
from ..specs.base import LABEL, SHA256, Slug
from ..specs.errors import shown
from ..table import Verdict
from .facts import Exactness, HeadToHead, RecordedDevice, RecordedPart, Rule, Text, Timing, Toolkit
from .verdict import Judgement, judge

SCHEMA = 6
"""Version of the record model, the rule's arithmetic and the wording of its reasons included."""
PARTS = 3
"""The first version with parts of an interval; it had no candidates under a tolerance."""
CLOSENESS = 4
"""The first version with candidates under a tolerance; it knew its code by the digest of the text alone."""
CODE = 5
"""The first version with a digest of the code. Records before it are stale."""
BLOCKS = 6
"""The first version with blocks that are allocated and captured anew; a record before it is one block."""
VERSIONS = (2, PARTS, CLOSENESS, CODE, SCHEMA)
"""Versions that are read."""
CODE_FIELDS = ("code_sha256", "control_code_sha256", "machine_code_sha256", "rekeyed")
"""What version 5 added."""


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


class Rekeyed(Model):
    """That the code of today is the code which was measured, though its digest was another."""

    of: Literal["candidate", "control"]
    proof: Literal["tokens", "machine_code"]
    """`tokens`: equal tokens, launches, contract and flags; `machine_code`: the same but for the tokens, and equal
    machine code, compiled without line information by the NVRTC that the record names."""
    old_sha256: Sha256
    """The digest before: of the text in records before version 5, then of the code."""


class Record(Model):
    """One record of the ledger; losers are kept. Made by `make_record`, which computes the verdict."""

    schema_version: Literal[2, 3, 4, 5, 6]
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
    code_sha256: Sha256 | None = None
    """Digest of all that decides what ran; a record of other code is stale. None before version 5."""
    control_code_sha256: Sha256 | None = None
    """Digest of the control's code; None before version 5, and where the control isn't generated or isn't known."""
    source_sha256: Sha256 | None
    """Digest of the generated text that was measured; None where there was no kernel of ours.

    Nothing is decided by it, since texts of equal code differ in comments.
    """
    control_source_sha256: Sha256 | None
    """Digest of the control's text; None where it has none."""
    cubin_sha256: Sha256 | None
    """Digest of the file that was loaded, line information included; None where none was (the emulator)."""
    machine_code_sha256: Sha256 | None = None
    """Digest of the machine code without line information (`compiler.cubin`); None where it isn't known."""
    rekeyed: tuple[Rekeyed, ...] = ()
    """Proofs by which the digests of the code were renewed since it was measured, the oldest first."""
    identity: Sha256 | None = None
    """Before version 5: digest of the spec's values. Nothing is decided by it."""
    exactness: Exactness
    timing: Timing | None
    """All samples; None if the candidate wasn't timed."""
    head_to_head: HeadToHead | None = None
    """Against the candidate that it would displace; None where it displaces none."""
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

    @model_validator(mode="before")
    @classmethod
    def _as_older_versions_wrote_it(cls, data: Any) -> Any:
        """Read what versions before 5 called `peers`, and the rule of one block from before version 6."""
        version = data.get("schema_version") if isinstance(data, dict) else None
        if type(version) is not int or version >= SCHEMA:
            return data
        timing, rule = data.get("timing"), data.get("rule")
        if version < CODE and isinstance(timing, dict) and "peers" in timing:
            renamed = {("baselines" if name == "peers" else name): value for name, value in timing.items()}
            data = {**data, "timing": renamed}
        if isinstance(rule, dict) and "min_blocks" not in rule:
            data = {**data, "rule": {**rule, "min_blocks": 0}}
        return data

    @model_validator(mode="after")
    def _version_has_them(self) -> Record:
        if self.schema_version < PARTS and self.part is not None:
            raise ValueError(f"found a part in a record of version {self.schema_version}, which had none.")
        if self.schema_version < CLOSENESS and self.exactness.closeness is not None:
            raise ValueError(
                f"found a closeness in a record of version {self.schema_version}, which had none."
            )
        if self.schema_version < BLOCKS and self._has_blocks:
            raise ValueError(
                f"found blocks or a head_to_head in a record of version {self.schema_version}, which had none."
            )
        if self.schema_version < CODE:
            if self.source_sha256 is None or any(getattr(self, name) for name in CODE_FIELDS):
                raise ValueError(
                    f"found a digest of code, or none of the text, in a record of version {self.schema_version}, "
                    "which knew its code by the text."
                )
        elif self.code_sha256 is None or self.identity is not None:
            raise ValueError(
                "found no code_sha256, or an identity; since version 5 code_sha256 alone counts."
            )
        return self

    @property
    def _has_blocks(self) -> bool:
        groups = self.timing.groups if self.timing is not None else ()
        several = not self.rule.of_one_block or any(group.block for group in groups)
        return several or self.head_to_head is not None

    @property
    def span(self) -> tuple[int, int] | None:
        """Both ends of the part."""
        return None if self.part is None else self.part.span

    @property
    def compiler(self) -> str | None:
        """Version of the NVRTC that made what was measured; None where no kernel of ours was."""
        return None if self.cubin_sha256 is None else self.toolkit.nvrtc

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
    code_sha256: str,
    control_code_sha256: str | None,
    source_sha256: str | None,
    control_source_sha256: str | None,
    cubin_sha256: str | None,
    machine_code_sha256: str | None,
    exactness: Exactness,
    timing: Timing | None,
    rule: Rule | None = None,
    part: RecordedPart | None = None,
    head_to_head: HeadToHead | None = None,
) -> Record:
    """Judge what a run found and seal it. `rule` is the default rule unless given.

    Raises:
        pydantic.ValidationError: a fact that no record can hold, such as a name that isn't a slug.
    """
    facts = dict(locals())  # the parameters are named as the fields
    facts["rule"] = rule = rule or Rule()
    return _seal(facts, judge(exactness, timing, rule, is_control=candidate == control))


def rekeyed(
    record: Record, code_sha256: str, control_code_sha256: str | None, proofs: tuple[Rekeyed, ...]
) -> Record:
    """The record under today's digests of its code, in today's form, judged anew from the same samples."""
    facts = {name: getattr(record, name) for name in Record.model_fields if name not in _COMPUTED}
    facts |= {
        "code_sha256": code_sha256,
        "control_code_sha256": control_code_sha256,
        "rekeyed": (*record.rekeyed, *proofs),
        "identity": None,
    }
    return _seal(facts, judgement_of(record))


_COMPUTED = ("schema_version", "verdict", "gain", "interval", "reason", "sha256")


def _seal(facts: Mapping[str, object], judgement: Judgement) -> Record:
    stated = {**facts, **asdict(judgement), "schema_version": SCHEMA, "sha256": "0" * 64}
    draft = Record.model_validate(stated)
    return draft.model_copy(update={"sha256": seal_of(draft)})


def document(record: Record) -> dict[str, Any]:
    """The record as JSON-able data, as its own version writes it."""
    written = record.model_dump(mode="json")
    version = record.schema_version
    if version < PARTS:
        del written["part"]
    if version < CLOSENESS:
        del written["exactness"]["closeness"]
    if version < BLOCKS:
        del written["head_to_head"], written["rule"]["min_blocks"]
        for group in written["timing"]["groups"] if written["timing"] else ():
            del group["block"]
    if version >= CODE:
        del written["identity"]
        return written
    for name in CODE_FIELDS:
        del written[name]
    if written["timing"] is not None:
        written["timing"]["peers"] = written["timing"].pop("baselines")
    return written


def seal_of(record: Record) -> str:
    """Digest of a record's canonical JSON without its seal.

    It detects edits and damage. Anyone can compute it, so it is no signature.
    """
    written = document(record)
    del written["sha256"]
    text = json.dumps(written, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def judgement_of(record: Record) -> Judgement:
    """What the record's own rule makes of its own samples, whatever verdict it states."""
    return judge(record.exactness, record.timing, record.rule, record.is_control)
