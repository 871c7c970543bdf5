"""Row-parallel linears as evidence: rows at the ends of a cell, sums that no order rounds, four calls to be timed.

GEMMs are a library's, so candidates are under a tolerance; values of -1, 0 and 1 make every sum exact, and hold
slices, streams and graphs bit for bit. The emulator runs the kernels of ours on partial sums that are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...evidence.family_evidence import Case, Chain
from ...evidence.oracle.arrays import namespace
from ...evidence.oracle.dtypes import on_host, storage
from ...evidence.tensors import array_library, as_torch, bits_of
from ...table import Candidate, Workload
from ..all_reduce.evidence import LAST_EPOCH, WRAPS
from ..all_reduce.oracle import all_reduce
from .decisions import KIND, rows_of
from .inputs import EXACT, VALUE_KINDS, activations, weights
from .oracle import from_e4m3, quantise_rows

if TYPE_CHECKING:
    import torch

    from ...evidence.emulated import EmulatedCase
    from ...evidence.executable import Executable
    from ...evidence.family_evidence import Call
    from ...evidence.rank_context import RankContext
    from ...runtime.device import Device
    from ...runtime.dispatch import Dispatch

    Tensors = Mapping[str, torch.Tensor]

TIMED_AT = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Rows that prefill chunks have; a cell without one of them is timed at its low end."""


class LinearAllReduceEvidence:
    """See `FamilyEvidence`, `ChannelEvidence`, `IntervalEvidence`, `ToleranceEvidence` and `ExecutableEvidence`."""

    def cases(self, workload: Workload) -> Iterator[Case]:
        """Whole numbers at the ends of the cell, next to them and where it is timed; other values at its low end."""
        low, high = rows_of(workload)
        exact = workload.fields["quantisation"] == "none"
        odd = low + 2 * (high - low) // 3 | 1  # no multiple of anything
        for m in sorted({low, min(low + 1, high), min(odd, high), *self.timed_at(workload), high}):
            yield Case(KIND, "small", 1, m, on_emulator=m == high, exact_sums=exact)
        yield Case(
            KIND, WRAPS, 2, self.timed_at(workload)[0], on_emulator=bool(workload.channel), exact_sums=exact
        )
        for values in VALUE_KINDS:
            if values != "small":
                at = self.timed_at(workload)[-1] if values == "normal" else min(high, low + 2)
                yield Case(KIND, values, 3, at, on_emulator=False, exact_sums=exact and values in EXACT)

    def tensors(self, workload: Workload, case: Case, device: torch.device) -> Tensors:
        """`x` [ranks, M, K] and `weight` [ranks, N, K]; codes (uint8) and `weight_scale` of a quantised one."""
        import torch

        from .overlap.quantise import quantised

        xp, values = array_library(device), "small" if case.inputs == WRAPS else case.inputs
        dtype, ranks = _dtype(workload), _number(workload, "world_size")
        width, k = _number(workload, "width"), _number(workload, "k")
        assert case.at is not None
        x = as_torch(activations(dtype, values, case.seed, ranks, case.at, k, xp), dtype, device)
        weight = as_torch(weights(dtype, values, case.seed, ranks, width, k, xp), dtype, device)
        if workload.fields["quantisation"] == "none":
            return {"x": x, "weight": weight}
        codes, scales = zip(*map(quantised, weight), strict=True)
        return {"x": x, "weight": torch.stack(codes), "weight_scale": torch.stack(scales)}

    def expected(self, workload: Workload, case: Case, bits: Mapping[str, Any]) -> Mapping[str, Any]:
        """`result` [M, N], the same on every rank: FP64 sums of each rank, rounded, then added in rank order."""
        del case
        dtype = _dtype(workload)
        xp = namespace(bits["x"])
        x, weight = _dequantised(workload, bits)
        partials = [
            storage(dtype).store((a @ b.T).astype(xp.float32)) for a, b in zip(x, weight, strict=True)
        ]
        return {"result": all_reduce(partials, dtype)}

    def truth(self, workload: Workload, case: Case, given: Tensors) -> Tensors:
        """`result` in FP64, of the activations as they are quantised; nothing in between is rounded."""
        del case
        import torch

        x, weight = _dequantised(workload, bits_of(given))
        device = given["x"].device
        total = sum(
            torch.as_tensor(a, device=device) @ torch.as_tensor(b, device=device).t()
            for a, b in zip(x, weight, strict=True)
        )
        assert isinstance(total, torch.Tensor)
        return {"result": total}

    def eager(self, workload: Workload, case: Case, given: Tensors) -> Tensors:
        """torch's GEMM of each rank in the dtype, and a sum in FP32."""
        del case
        import torch

        x, weight = given["x"], given["weight"]
        if workload.fields["quantisation"] != "none":
            weight = (weight.view(torch.float8_e4m3fn).float() * given["weight_scale"]).to(x.dtype)
        total = sum((a @ b.t()).float() for a, b in zip(x, weight, strict=True))
        assert isinstance(total, torch.Tensor)
        return {"result": total.to(x.dtype)}

    def call_before(self, case: Case) -> int | None:
        """`LAST_EPOCH` for `wrap`."""
        return LAST_EPOCH if case.inputs == WRAPS else None

    def after_call(self, workload: Workload, call: int, words: Any) -> None:
        """The epoch and flags of that call."""
        offsets, signed = workload.channel, call - 2**32 if call >= 2**31 else call
        words[:, offsets["ticket"] // 4 + 1] = signed
        words[:, offsets["flags"] // 4 + 1 : offsets["scratch"] // 4 : 2] = signed

    def most(self, workload: Workload, candidate: Candidate) -> int:
        """The high end of the cell."""
        del candidate
        return rows_of(workload)[1]

    def timed_at(self, workload: Workload) -> Sequence[int]:
        """Those of `TIMED_AT` that the cell holds."""
        low, high = rows_of(workload)
        return [m for m in TIMED_AT if low <= m <= high] or [low]

    def channels(self, workloads: Sequence[Workload], workload: Workload) -> Sequence[str]:
        """Those of `all_reduce`, whose kernels may serve the plain path."""
        ranks = workload.fields["world_size"]
        found = [
            entry.spec
            for entry in workloads
            if entry.family == "all_reduce" and entry.channel and entry.fields["world_size"] == ranks
        ]
        return list(dict.fromkeys(found))

    def chain(self, workload: Workload, device: torch.device, seed: int) -> Chain:
        """What rank 0 times at the low end of the cell."""
        return self.chain_of_rank(workload, device, seed, 0, rows_of(workload)[0])

    def chain_of_rank(self, workload: Workload, device: torch.device, seed: int, rank: int, at: int) -> Chain:
        """Four calls on one x, each with a weight of its own."""
        from .chain import LinearChain

        return LinearChain.make(workload, device, seed + rank, at)

    def baselines(self, workload: Workload) -> Mapping[str, Callable[[Chain], Call]]:
        """The same GEMM, then NCCL's or PyTorch's two-shot all-reduce; PyTorch's fused GEMM and reduce-scatter."""
        from . import baselines

        return baselines.of(str(workload.fields["quantisation"]))

    def executable(
        self,
        dispatch: Dispatch,
        workload: Workload,
        candidate: Candidate,
        arch: str,
        at: int | None,
        here: Device,
        place: RankContext,
    ) -> Executable:
        """As the op carries it out; `at` rows, by default the low end of the cell."""
        from .execution import execution_of

        assert place.comm is not None
        m = rows_of(workload)[0] if at is None else at
        return execution_of(dispatch, workload, candidate, arch, m, here, place.comm)

    def emulated(
        self, root: Path, workload: Workload, candidate: Candidate, arch: str, case: Case
    ) -> EmulatedCase:
        """The quantisation of a few rows on every rank, and the reduction of partial sums of every kind of values."""
        from .emulated import emulated_case

        values = "small" if case.inputs == WRAPS else case.inputs
        return emulated_case(self, root, workload, candidate, arch, case, values)


EVIDENCE = LinearAllReduceEvidence()


def _dequantised(workload: Workload, bits: Mapping[str, Any]) -> tuple[Any, Any]:
    """x [ranks, M, K] and weight [ranks, N, K] as float64: the values that are multiplied."""
    xp, dtype = namespace(bits["x"]), _dtype(workload)
    if workload.fields["quantisation"] == "none":
        x, weight = (storage(dtype).load(bits[name]).astype(xp.float64) for name in ("x", "weight"))
        return x, weight
    nonfinite: Any = workload.fields["nonfinite"]
    # The oracle of the quantisation is NumPy's.
    host: dict[str, Any] = {name: on_host(values) for name, values in bits.items()}
    rows: list[Any] = [quantise_rows(part, dtype, nonfinite) for part in host["x"]]
    codes, scales = (np.stack(parts) for parts in zip(*rows, strict=True))
    x = from_e4m3(codes).astype(np.float64) * scales[..., None]
    weight = from_e4m3(host["weight"]).astype(np.float64) * host["weight_scale"].view(np.float32)
    return xp.asarray(x), xp.asarray(weight)


def _dtype(workload: Workload) -> str:
    return str(workload.fields["dtype"])


def _number(workload: Workload, name: str) -> int:
    return int(str(workload.fields[name]))
