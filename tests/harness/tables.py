"""Small hand-made tables of boundaries, so that the runtime is tested without the generator."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from kernwright.families.hyper_connection.op import HyperConnection
from kernwright.runtime import Dispatch, bind
from kernwright.table import (
    FORMAT,
    Build,
    Candidate,
    Contract,
    CtaRecord,
    DeviceKind,
    FamilyEntry,
    FieldValue,
    Kernel,
    RecordLine,
    Table,
    Verdict,
    Workload,
)

ARCHS = ("sm_70", "sm_75", "sm_80", "sm_90")
H200 = DeviceKind("sm_90", 132, "NVIDIA H200")

STEPS = {
    "boundary": ("combine_norm", "down", "up_mix"),
    "first": ("norm", "down", "up_mix"),
    "combine": ("combine",),
    "final": ("combine_norm", "down_final", "up_mix"),
}

RECORD = CtaRecord(("failures", "cta", "row", "branch", "expected", "seen"), "row {row} of branch {branch}")
FAMILY = FamilyEntry(
    "hyper_connection", kinds=tuple(STEPS), unit="tokens", waits={4: "the gates"}, cta_record=RECORD
)


def source(name: str, arch: str) -> str:
    return f"// fake source of {name} for {arch}\n"


def build(name: str, arch: str) -> Build:
    digest = hashlib.sha256(source(name, arch).encode()).hexdigest()
    return Build(digest, f"{name}.{arch}.cu", digest)


def candidate(
    name: str,
    archs: tuple[str, ...] = ARCHS,
    *,
    branches: int = 4,
    hidden: int = 64,
    low_rank: int = 32,
    dtype: str = "float16",
    contract: Contract = "exact",
    min_sms: int = 0,
    capabilities: tuple[str, ...] = (),
    steps: dict[str, tuple[str, ...]] | None = None,
) -> Candidate:
    def kernel(symbol: str, *args: str) -> Kernel:
        return Kernel((branches, 1, 1), (64, 1, 1), args, symbol=f"{symbol}_{name}")

    return Candidate(
        name=name,
        route="replicated",
        contract=contract,
        builds={arch: build(name, arch) for arch in archs},
        kernels={
            "combine_norm": kernel("combine_norm", "residual", "block", "injection", "norm_weight", "x", "y"),
            "norm": kernel("norm", "residual", "norm_weight", "y"),
            "combine": kernel("combine", "residual", "block", "injection", "x"),
            "down": kernel("down", "y", "down_weight", "lora", "injection_out"),
            "down_final": kernel("down_final", "y", "down_weight", "lora"),
            "up_mix": kernel("up_mix", "lora", "up_weight", "y", "block_input"),
        },
        steps=STEPS if steps is None else steps,
        scratch={
            "x": ((1, branches * hidden), dtype),
            "y": ((1, branches * hidden), dtype),
            "lora": ((1, low_rank), dtype),
        },
        min_sms=min_sms,
        capabilities=capabilities,
    )


def workload(
    *candidates: Candidate, records: tuple[RecordLine, ...] = (), spec: str = "small", **fields: FieldValue
) -> Workload:
    values: dict[str, FieldValue] = {
        "dtype": "float16",
        "branches": 4,
        "hidden": 64,
        "low_rank": 32,
        "tokens": (1, 1),
        "world_size": 1,
        "eps": 1e-6,
        "norm_weight": "per_branch",
    }
    values |= fields
    low, high = values["tokens"]  # type: ignore[misc]
    short = {"float16": "fp16", "bfloat16": "bf16"}[str(values["dtype"])]
    tokens = low if low == high else f"{low}to{high}"
    return Workload(
        family="hyper_connection",
        spec=spec,
        label=f"{short}-hc{values['branches']}-h{values['hidden']}-n{tokens}-r{values['low_rank']}"
        f"-tp{values['world_size']}",
        fields=values,
        trees={"norm": (1, 8, 8), "down": (4, 8, 8), "up": (1, 32, 1)},
        candidates=candidates,
        records=records,
    )


def record(
    name: str,
    verdict: Verdict = "admitted",
    gain: float | None = 0.1,
    *,
    exact: bool = True,
    arch: str = "sm_90",
    device: DeviceKind = H200,
    code: str | None = None,
) -> RecordLine:
    return RecordLine(name, device, code or build(name, arch).code, exact, verdict, gain, f"{name}.json")


def table(*workloads: Workload, root: Path = Path("/nowhere")) -> Table:
    return Table(format=FORMAT, root=root, workloads=workloads, families=(FAMILY,))


def dispatch_of(*workloads: Workload, root: Path = Path("/nowhere")) -> Dispatch:
    dispatch = bind(table(*workloads, root=root))
    HyperConnection(dispatch)
    return dispatch


def tensors(
    tokens: int = 1,
    branches: int = 4,
    hidden: int = 64,
    low_rank: int = 32,
    dtype: torch.dtype = torch.float16,
    kind: str = "boundary",
    shared: bool = False,
    seed: int = 0,
) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * scale).to(dtype)

    state = branches * hidden
    rows = low_rank if kind == "final" else -(-(low_rank + branches) // 16) * 16
    values: list[torch.Tensor | None] = [
        normal(tokens, state),
        normal(tokens, hidden),
        normal(tokens, branches),
        normal(hidden if shared else state, scale=0.1),
        normal(rows, state, scale=state**-0.5),
        normal(state, low_rank, scale=low_rank**-0.5),
    ]
    if kind == "first":
        values[1:3] = [None, None]
    if kind == "combine":
        values[3:] = [None, None, None]
    return values


class FakeModule:
    """Stands for loaded machine code and writes down its launches: symbol, geometry, arguments, shared, stream."""

    def __init__(self, launches: list[tuple[object, ...]]) -> None:
        self.launches = launches

    def launcher(self, kernel: Kernel) -> Callable[[int, int, int], object]:
        def launch(stream: int, parameters: int, extra: int) -> None:
            assert extra == 0
            addresses = (ctypes.c_void_p * len(kernel.args)).from_address(parameters)
            args = [ctypes.c_uint64.from_address(address).value for address in addresses if address]
            self.launches.append(
                (kernel.symbol, kernel.grid, kernel.block, args, kernel.shared_bytes, stream)
            )

        return launch
