"""What a generated text says of itself: comment lines on what is computed, how, and how it is launched.

`statement` takes them apart again: records of older versions know their code by the digest of the text alone, and
its header is where that text states what is launched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..specs import CandidateSpec, WorkloadSpec
from .lowering import Lowering

FLAGS_LINE = "Compiled with "
_FIELD = re.compile(r"(\w+) = (\([^)]*\)|[^,]*)")


def describe(workloads: Sequence[WorkloadSpec], candidate: CandidateSpec) -> list[str]:
    """Comment lines that say what is computed and how; of the fields those that all `workloads` share."""
    stated = [workload.fields() for workload in workloads]
    fields = ", ".join(
        f"{name} = {_plain(value)}"
        for name, value in stated[0].items()
        if all(other[name] == value for other in stated)
    )
    trees = ", ".join(f"{name} {tree}" for name, tree in workloads[0].trees().items())
    schedule = ", ".join(
        f"{option} = {_plain(value)}"
        for option, value in candidate.schedule().items()
        if option not in ("name", "route")
    )
    lines = [f"workload: {fields}"]
    if trees:  # a family may reduce without trees
        lines.append(f"trees (segments, lanes, chunk): {trees}")
    return [*lines, f"schedule: {schedule}"]


def describe_launches(lowering: Lowering) -> list[str]:
    """Comment lines that say how the kernels are launched."""
    lines = [f"scratch: {name} {list(shape)} {dtype}" for name, (shape, dtype) in lowering.scratch.items()]
    lines += [f"state: {name} {list(shape)} {dtype}" for name, (shape, dtype) in lowering.state.items()]
    lines += [f"argument: {kind} {name}" for name, kind in lowering.arguments.items()]
    for kind, kernels in lowering.steps.items():
        lines.append(f"{kind}: {' -> '.join(kernels)}")
    for name, launch in lowering.kernels.items():
        geometry = (
            f"grid {list(launch.grid)}, block {list(launch.block)}, dynamic shared {launch.shared_bytes}"
            f"{', programmatic' if launch.programmatic else ''}{', resident' if launch.resident else ''}"
        )
        lines.append(f"{name}({', '.join(launch.args)}): {geometry}")
    return lines


@dataclass(frozen=True)
class Header:
    """What a header states, taken apart."""

    fields: Mapping[str, str]
    """The workload's fields; not those in which the cells that share the text differ."""
    trees: str
    schedule: str
    launches: frozenset[str]
    """Scratch, state, arguments, steps and launches, a line each; their order decides nothing."""
    flags: str

    def difference(self, today: Header, *, schedule: bool) -> str:
        """The first thing that `today` states otherwise, in words; empty where there is none.

        Args:
            today: the statement of today's code.
            schedule: whether the schedule counts beyond what is launched, because the op reads it.
        """
        for name, value in self.fields.items():
            if today.fields.get(name) != value:
                return f"{name} was {value}, and is {today.fields.get(name, 'not stated')}"
        pairs = [("trees", self.trees, today.trees), ("flags", self.flags, today.flags)]
        if schedule:
            pairs.append(("schedule", self.schedule, today.schedule))
        for what, was, now in pairs:
            if was != now:
                return f"{what} were {was or 'none'}, and are {now or 'none'}"
        gone, new = sorted(self.launches - today.launches), sorted(today.launches - self.launches)
        if gone or new:
            return f"launches were `{'; '.join(gone) or 'none'}`, and are `{'; '.join(new) or 'none'}`"
        return ""


def statement(lines: Sequence[str]) -> Header:
    """Take header lines apart, with or without the `//` in front of them; other lines are skipped.

    The description ends at the first empty comment line, the line of the flags follows.
    """
    bare = [line.removeprefix("//").strip() for line in lines]
    end = bare.index("") if "" in bare else len(bare)
    found = {"workload": "", "trees (segments, lanes, chunk)": "", "schedule": ""}
    launches: set[str] = set()
    for line in bare[:end]:
        key, separator, rest = line.partition(":")
        if key in found:
            found[key] = rest.strip()
        elif separator:
            launches.add(line)
    flags = next((line.removeprefix(FLAGS_LINE) for line in bare[end:] if line.startswith(FLAGS_LINE)), "")
    workload, trees, schedule = found.values()
    return Header(dict(_FIELD.findall(workload)), trees, schedule, frozenset(launches), flags)


def header_of(text: str) -> list[str]:
    """The lines of a generated text up to the first that isn't a comment, but for the title line."""
    lines = text.split("\n")
    end = next((index for index, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return lines[1:end]


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        stated = [f"{key} = {_plain(item)}" for key, item in value.items() if item is not None]
        return "{ " + ", ".join(stated) + " }" if stated else "defaults"
    if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1]:
        return str(value[0])
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
