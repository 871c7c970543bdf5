"""The base of every family's spec: one workload, its candidates, and the rules that hold for all families."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, model_validator

from ..table import FieldValue
from .base import (
    SHORT_DTYPE,
    Arch,
    Count,
    DType,
    Model,
    Slug,
    ToleranceSpec,
    WorldSize,
    as_list,
    one_or_several,
    raise_findings,
)
from .errors import Finding, listing
from .limits import Budget, Budgets, Expectations, unknown_kernels
from .tree import TreeSpec

_T = TypeVar("_T")

ScheduleValues = dict[str, Any]
"""JSON-able description of how a candidate computes; equal schedules generate equal kernels."""

COVERED_BY: dict[str, str] = {"sm_90a": "sm_90"}
"""Targets that share a cell with a plain one, so that a control listing that one covers them."""


class WorkloadSpec(Model, ABC):
    """What is computed. As written it may list dtypes and world sizes; a concrete one has one of each."""

    dtypes: Annotated[
        tuple[DType, ...], BeforeValidator(as_list), Field(min_length=1, alias="dtype"), one_or_several(DType)
    ]
    """Storage dtype of all tensors, or a list of them."""
    world_sizes: Annotated[
        tuple[WorldSize, ...],
        BeforeValidator(as_list),
        Field(min_length=1, alias="world_size"),
        one_or_several(WorldSize),
    ] = (1,)
    """Number of ranks, or a list of them."""

    family: ClassVar[str]
    """Name of the family, as in the spec file."""
    SHORT_FORM: ClassVar[Mapping[str, str]]
    """Prefixes of the short form (`tp`, ...) and the fields that they give.

    A prefix that several families use gives the same field in all of them.
    """

    @property
    def dtype(self) -> str:
        """The storage dtype of a concrete workload."""
        return single("dtypes", self.dtypes)

    @property
    def world_size(self) -> int:
        """The number of ranks of a concrete workload."""
        return single("world sizes", self.world_sizes)

    def expand(self) -> tuple[Self, ...]:
        """Give the concrete workloads: every dtype with every world size, in the order written."""
        return tuple(
            self.model_copy(update={"dtypes": (dtype,), "world_sizes": (world_size,)})
            for dtype in self.dtypes
            for world_size in self.world_sizes
        )

    @abstractmethod
    def fields(self) -> dict[str, FieldValue]:
        """Give the fields of a concrete workload as plain values."""

    @abstractmethod
    def trees(self) -> dict[str, TreeSpec]:
        """Give the reduction trees by the name of the reduction, defaults resolved."""

    @abstractmethod
    def problems(self) -> Iterator[Finding]:
        """Find rules that a concrete workload breaks; paths are relative to the workload."""

    def label(self) -> str:
        """Give the short form without a target: `fp16-hc4-h2560-n1-r320-tp1`."""
        fields = self.fields()
        parts = [SHORT_DTYPE[self.dtype]]
        for prefix, name in self.SHORT_FORM.items():
            value = fields[name]
            text = f"{value}"
            if isinstance(value, tuple):
                low, high = value
                text = f"{low}" if low == high else f"{low}to{high}"
            parts.append(prefix + text)
        return "-".join(parts)


class CandidateSpec(Model):
    """A named schedule for a workload on some targets."""

    name: Slug
    """Unique within the file."""
    arch: Annotated[tuple[Arch, ...], Field(min_length=1)]
    """Targets that it is built for."""
    route: str
    """How the work is laid out; decides which options there are."""
    contract: Literal["exact", "tolerance"] = "exact"
    """Whether it gives the one right answer bit for bit, or stays within a tolerance."""
    tolerance: ToleranceSpec | None = None
    """The bounds; needed if, and only if, the contract is "tolerance"."""
    min_sms: Count | None = None
    """Streaming multiprocessors that a device must have; checked when a plan is made."""
    budget: Budgets = Budgets()
    """Resources that its kernels may use at most."""
    expect: Expectations = Expectations()
    """Machine instructions that its kernels have at least so often."""

    KERNELS: ClassVar[tuple[str, ...]] = ()

    def kernels(self) -> tuple[str, ...]:
        """Name the kernels that the route is made of."""
        return self.KERNELS

    def schedule(self) -> ScheduleValues:
        """Give what decides the generated code: the route and its options, defaults resolved."""
        return {"route": self.route}

    def problems(self, workload: WorkloadSpec) -> Iterator[Finding]:
        """Find options that don't fit a concrete workload; paths are relative to the candidate."""
        del workload
        return iter(())

    def serves(self, workload: WorkloadSpec) -> bool:
        """Tell whether it is generated for a concrete workload; a control always is."""
        del workload
        return True

    def budget_for(self, kernel: str) -> dict[str, int]:
        """Give the limits of one kernel; its own win over those of every kernel."""
        own = self.budget.kernels.get(kernel, Budget())
        return self.budget.every.model_dump(exclude_none=True) | own.model_dump(exclude_none=True)

    def expect_for(self, kernel: str) -> dict[str, int]:
        """Give the least instruction counts of one kernel; its own win over those of every kernel."""
        return dict(self.expect.every) | self.expect.kernels.get(kernel, {})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        raise_findings(self._own_problems())
        return self

    def _own_problems(self) -> Iterator[Finding]:
        twice = sorted({arch for arch in self.arch if self.arch.count(arch) > 1})
        if twice:
            yield Finding(("arch",), f"{listing(twice)} is listed twice; list every target once.")
        if self.contract == "tolerance" and self.tolerance is None:
            message = (
                'contract is "tolerance", but there is no tolerance; add tolerance = { relative_l2 = ... }.'
            )
            yield Finding(("contract",), message)
        if self.contract == "exact" and self.tolerance is not None:
            message = 'there is a tolerance, but contract is "exact"; drop it, or set contract = "tolerance".'
            yield Finding(("tolerance",), message)
        yield from unknown_kernels("budget", self.budget.kernels, self.kernels(), self.route)
        yield from unknown_kernels("expect", self.expect.kernels, self.kernels(), self.route)


class Spec(Model):
    """One spec file: a workload and its candidates, the first of which is the control."""

    family: str
    """What is computed, in one word; decides which keys the file has."""
    name: Slug
    """Name of the spec; the file is called `<name>.toml`."""
    workload: WorkloadSpec
    """What is computed."""
    candidate: tuple[CandidateSpec, ...]
    """How it may be computed; the first is the control."""

    EXACT_CONTROL: ClassVar[bool] = True
    """Whether the control must be exact; not if it is a library's GEMM, whose bits aren't specified."""

    @property
    def candidates(self) -> tuple[CandidateSpec, ...]:
        """All candidates, the control first."""
        return self.candidate

    @property
    def control(self) -> CandidateSpec:
        """The candidate that the others are compared with."""
        return self.candidate[0]

    def workloads(self) -> tuple[WorkloadSpec, ...]:
        """Give the concrete workloads that the file's lists expand into."""
        return self.workload.expand()

    @classmethod
    def findings(
        cls, workload: WorkloadSpec | None, candidates: Mapping[int, CandidateSpec]
    ) -> Iterator[Finding]:
        """Find broken rules that reach over the parts of a file.

        Takes the parts that are valid by themselves, candidates by their place in the file, so that a mistake
        in one candidate doesn't hide those in the others.
        """
        yield from cls._set_findings(candidates)
        if workload is None:
            return
        if len(set(workload.dtypes)) < len(workload.dtypes):
            yield Finding(("workload", "dtype"), "a dtype is listed twice; list every dtype once.")
        if len(set(workload.world_sizes)) < len(workload.world_sizes):
            yield Finding(("workload", "world_size"), "a world size is listed twice; list every one once.")
        found: dict[Finding, None] = {}
        for concrete in workload.expand():
            own = [Finding(("workload", *f.path), f.message) for f in concrete.problems()]
            found.update(dict.fromkeys(own))
            if own:
                continue
            for index, candidate in candidates.items():
                for finding in candidate.problems(concrete) if candidate.serves(concrete) else ():
                    found[Finding(("candidate", index, *finding.path), finding.message)] = None
        yield from found

    @classmethod
    def _set_findings(cls, candidates: Mapping[int, CandidateSpec]) -> Iterator[Finding]:
        """Find what is wrong with the candidates as a set: equal names, a control that isn't one."""
        first: dict[str, int] = {}
        for index, candidate in candidates.items():
            if candidate.name in first:
                message = f'"{candidate.name}" is already the name of candidate[{first[candidate.name]}]; rename one.'
                yield Finding(("candidate", index, "name"), message)
            first.setdefault(candidate.name, index)
        control = candidates.get(0)
        if control is None:
            return
        if cls.EXACT_CONTROL and control.contract != "exact":
            message = (
                f'the control "{control.name}" has contract "{control.contract}"; a control must be exact.'
            )
            yield Finding(("candidate", 0, "contract"), message)
        if control.route == "external":
            message = (
                f'the control "{control.name}" is external; dispatch falls back to the control, which must be '
                "generated: put a candidate of ours first, and compare with your own kernel by `bench --against`."
            )
            yield Finding(("candidate", 0, "route"), message)
        for candidate in candidates.values():
            missing = [
                a for a in candidate.arch if a not in control.arch and COVERED_BY.get(a) not in control.arch
            ]
            if missing:
                message = (
                    f'the control "{control.name}" lists {listing(control.arch)}, but "{candidate.name}" also '
                    f"{listing(missing)}; the control must list every target that any candidate lists."
                )
                yield Finding(("candidate", 0, "arch"), message)

    @model_validator(mode="after")
    def _rules(self) -> Self:
        raise_findings(self.findings(self.workload, dict(enumerate(self.candidate))))
        return self


def single(what: str, values: tuple[_T, ...]) -> _T:
    """The one value of a concrete workload.

    Raises:
        ValueError: it lists several.
    """
    if len(values) != 1:
        raise ValueError(
            f"this workload lists {len(values)} {what}; take a concrete one from Spec.workloads()."
        )
    return values[0]
