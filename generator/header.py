"""What a generated text says of itself: comment lines on what is computed, how, and how it is launched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..specs import CandidateSpec, WorkloadSpec
from .lowering import Lowering


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


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        stated = [f"{key} = {_plain(item)}" for key, item in value.items() if item is not None]
        return "{ " + ", ".join(stated) + " }" if stated else "defaults"
    if isinstance(value, tuple) and len(value) == 2 and value[0] == value[1]:
        return str(value[0])
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
