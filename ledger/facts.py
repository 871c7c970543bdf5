"""What a run observes of one candidate: the parts of a record without the verdict."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ..specs import Model
from ..specs.base import SHA256, Count, Slug
from ..specs.errors import shown
from ..table import Scope
from .closeness import Closeness

_DEVICE_ARCH = re.compile(r"sm_[1-9]\d{1,2}")


def _device_arch(arch: str) -> str:
    if _DEVICE_ARCH.fullmatch(arch) is None:
        raise ValueError(
            f"found {shown(arch)}; a device is written like sm_70 or sm_90, without a letter: "
            "sm_90a names a variant of code, not other hardware."
        )
    return arch


DeviceArch = Annotated[str, AfterValidator(_device_arch)]
Text = Annotated[str, Field(min_length=1)]
Total = Annotated[int, Field(strict=True, ge=0)]
"""A number that may be larger than anything a kernel indexes, such as all values of many inputs."""
Milliseconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class RecordedDevice(Model):
    """What a measurement is valid for: the same architecture, SM count and name."""

    arch: DeviceArch
    """The device's own architecture, which need not be one that kernels are generated for."""
    sm_count: Count
    name: Annotated[str, Field(min_length=1, max_length=128)]


class RecordedPart(Model):
    """The part of a workload's interval that was measured: a record counts for it alone."""

    field: Slug
    """The field that is an interval, by its name in the workload."""
    low: Count
    high: Count
    """Inclusive."""
    at: Count
    """The value that stood for the part."""

    @model_validator(mode="after")
    def _inside(self) -> RecordedPart:
        if not self.low <= self.at <= self.high:
            raise ValueError(f"found {self.at} as what stands for {self.low} to {self.high}; it lies inside.")
        return self

    @property
    def span(self) -> tuple[int, int]:
        """Both ends."""
        return self.low, self.high


class Toolkit(Model):
    """Versions of what built and ran the candidate."""

    kernwright: Text
    python: Text
    torch: Text
    cupy: Text
    nvrtc: Text
    driver: Text


class Exactness(Model):
    """The comparison of everything a candidate stores: bit for bit, or with FP64 under a tolerance."""

    cases: Total
    """Inputs that were compared; 0 if exactness wasn't checked."""
    values: Total
    """Stored values that were compared."""
    mismatches: Total
    """Stored values that differed in bits, or lay outside the tolerance."""
    against: Text
    """What was compared with: "control <name>", "torch reference", "FP64"."""
    first: Text | None = None
    """The first mismatch with both values, in words; None if there is none."""
    closeness: Closeness | None = None
    """How near it stays, of a candidate under a tolerance; None of one that is exact."""

    @property
    def exact(self) -> bool:
        """Whether at least one case was compared and no value differed, or all lay within the tolerance."""
        return self.cases > 0 and self.mismatches == 0

    @property
    def inexact(self) -> bool:
        """Whether a value differed. Where nothing was compared, this is false and so is `exact`."""
        return self.mismatches > 0

    @model_validator(mode="after")
    def _possible(self) -> Exactness:
        if self.mismatches > self.values:
            raise ValueError(
                f"found {self.mismatches} mismatches in {self.values} values; at most all values differ."
            )
        if self.values == 0 and self.cases:
            raise ValueError(
                f"found {self.cases} cases without a value; a case compares at least one stored value."
            )
        return self


class Group(Model):
    """One group of alternating samples, A B B A: control, candidate, candidate, control."""

    control: tuple[Milliseconds, ...]
    """Milliseconds a replay of the control, in the order taken."""
    candidate: tuple[Milliseconds, ...]
    """Milliseconds a replay of the candidate, in the order taken."""
    problem: Text | None = None
    """Why the group is invalid (a foreign process, throttling, clocks, ECC errors); None if it is valid."""
    block: Total = 0
    """Number of the block: both sides were allocated and captured anew for it. Before version 6 there was one."""

    @model_validator(mode="after")
    def _paired(self) -> Group:
        if self.problem is None and not len(self.control) == len(self.candidate) >= 2:
            raise ValueError(
                f"found {len(self.control)} samples of the control and {len(self.candidate)} of the "
                "candidate; a valid group has equally many of both, at least two."
            )
        return self


class Timing(Model):
    """All samples of one run, of one scope; numbers of different scopes are never compared."""

    scope: Scope
    calls: Count
    """Calls of the op, or launches of the kernel, in one replay."""
    replays: Count
    """Replays that one sample is the mean of."""
    groups: tuple[Group, ...]
    bytes: Total | None = None
    """Bytes that one replay must move at least, by the workload's model."""
    flops: Total | None = None
    """Floating-point operations that one replay must do, by the workload's model."""
    floor_ms: Milliseconds | None = None
    """Milliseconds that moving `bytes` took in the same run: no replay can be faster."""
    baselines: dict[Text, tuple[Milliseconds, ...]] = Field(default_factory=dict)
    """Milliseconds a replay of what else was timed in the same run and scope, by its name."""

    @property
    def valid(self) -> tuple[Group, ...]:
        """The groups that count, in the order taken."""
        return tuple(group for group in self.groups if group.problem is None)


class HeadToHead(Model):
    """Blocks of the candidate against the one that the ledger admitted until then, in the same process."""

    against: Slug
    """Name of that one: the `control` of the groups."""
    code_sha256: Annotated[str, Field(pattern=SHA256)]
    """Digest of its code."""
    timing: Timing


class Rule(Model):
    """How samples become a verdict; a record states the rule that it was judged by."""

    threshold: Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)] = 0.01
    """Gain, as a fraction, that the whole interval must exceed (or fall below its negative)."""
    confidence: Annotated[float, Field(strict=True, gt=0, lt=1, allow_inf_nan=False)] = 0.95
    """Least probability with which the interval holds the true ratio."""
    min_groups: Count = 3
    """Valid groups without which a block doesn't count."""
    min_blocks: Total = 3
    """Valid blocks without which there is no verdict. 0 is the rule before version 6, of one block: its interval is
    over the groups, and `min_groups` are needed for a verdict."""

    @property
    def of_one_block(self) -> bool:
        """Whether it is the rule from before blocks were taken anew."""
        return self.min_blocks == 0

    @model_validator(mode="after")
    def _attainable(self) -> Rule:
        if self.min_blocks == 1:
            raise ValueError("found min_blocks 1; the spread of blocks needs two at least.")
        # The widest interval, from the smallest to the largest of n ratios, misses the median with 2^(1-n).
        if self.of_one_block and 1 - 2.0 ** (1 - self.min_groups) < self.confidence:
            raise ValueError(
                f"found min_groups {self.min_groups} with confidence {self.confidence}; so few groups reach "
                f"{1 - 2.0 ** (1 - self.min_groups):.4g} at most. Ask for more groups or less confidence."
            )
        return self
