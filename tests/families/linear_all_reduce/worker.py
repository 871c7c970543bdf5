"""What one of two ranks does over Gloo; run as `worker.py RANK STORE RESULT BACKEND`, the test reads RESULT."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from kernwright.families.linear_all_reduce.op import Terms
from kernwright.families.linear_all_reduce.oracle import from_e4m3
from kernwright.families.linear_all_reduce.oracle import quantise_rows as oracle_rows
from kernwright.families.linear_all_reduce.overlap.operator import group_of, groups
from kernwright.families.linear_all_reduce.overlap.quantise import quantise_rows
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule
from kernwright.generated.dispatch import DISPATCH, linear_all_reduce

RANKS = 2
PLAIN = None
SLICED = {
    "four": SliceSchedule("sliced_nccl", (1, 1, 1, 1)),
    "uneven": SliceSchedule("sliced_nccl", (5, 2, 1), align=4),
    "many": SliceSchedule("sliced_nccl", (1,) * 64),
    "late": SliceSchedule("sliced_nccl", (1, 1), min_m=16),
}


class Block(torch.nn.Module):
    """Two layers of a decoder, as a serving engine's: what is between them is of torch."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.o_proj = RowParallel(24, 16, generator)
        self.down_proj = RowParallel(16, 24, generator)
        self.biased = RowParallel(16, 24, generator, bias=True)
        self.kept = RowParallel(16, 24, generator)
        self.kept.reduce_results = False

    def forward(self, x):
        return self.down_proj(torch.nn.functional.gelu(self.o_proj(x)))


class RowParallel(torch.nn.Module):
    """The attributes of a serving engine's row-parallel linear."""

    input_is_parallel = True
    tp_size = RANKS

    def __init__(self, width, k, generator, bias=False):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(width, k, generator=generator), requires_grad=False)
        self.bias = torch.nn.Parameter(torch.ones(width), requires_grad=False) if bias else None
        self.reduce_results, self.tp_rank = True, distributed.get_rank()

    def forward(self, x):
        result = torch.nn.functional.linear(x, self.weight)
        if self.reduce_results:
            distributed.all_reduce(result)
        return result


def small(shape, seed, dtype):
    """Values of -1, 0 and 1: every sum is exact in every dtype, so that paths can be compared bit for bit."""
    return torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def truth(x, weight, bias=None):
    """The sum over ranks in FP64; x and weight hold all ranks' parts."""
    total = sum(a.double() @ b.double().T for a, b in zip(x, weight, strict=True))
    return total if bias is None else total + bias.double()


def main(rank: int) -> dict[str, object]:
    comm = DISPATCH.communicator()
    op: Any = linear_all_reduce
    found: dict[str, object] = {"absence": comm.absence("linear_all_reduce_5120")}

    def call(x, weight, how=PLAIN, **more):
        force = None if how is PLAIN else SLICED[how]
        return op(x[rank], weight[rank], comm=comm, force=force, **more)

    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        wrong = []
        for m in (0, 1, 3, 4, 17, 64):
            for width in (24, 5):
                x = [small((m, 40), 10 * m + r, dtype) for r in range(RANKS)]
                weight = [small((width, 40), 7 + r, dtype) for r in range(RANKS)]
                wanted = truth(x, weight)
                wrong += [
                    f"{how} {m} {width}"
                    for how in (PLAIN, *SLICED)
                    if not torch.equal(call(x, weight, how).double(), wanted)
                ]
        found[str(dtype)] = wrong

    x = [small((17, 40), r, torch.float32) for r in range(RANKS)]
    weight = [small((24, 40), 7 + r, torch.float32) for r in range(RANKS)]
    bias = torch.full((24,), 100.0)
    wanted = truth(x, weight, bias)
    found["bias"] = [
        how for how in (PLAIN, *SLICED) if not torch.equal(call(x, weight, how, bias=bias).double(), wanted)
    ]
    wanted = truth(x, weight)
    layouts = {
        "transposed": lambda t: t.t().contiguous().t(),
        "strided": lambda t: torch.stack([t, t + 1], dim=-1)[..., 0],
        "rows apart": lambda t: torch.stack([t, t + 1], dim=1).flatten(0, 1)[::2],
    }
    found["layouts"] = [
        f"{how} {name}"
        for name, change in layouts.items()
        for how in (PLAIN, *SLICED)
        if not torch.equal(call([change(t) for t in x], weight, how).double(), wanted)
    ]
    leading = [t[:16].reshape(2, 2, 4, 40) for t in x]
    found["leading dimensions"] = [
        how
        for how in (PLAIN, *SLICED)
        if not torch.equal(call(leading, weight, how).double(), wanted[:16].reshape(2, 2, 4, 24))
    ]

    found["fp8"] = fp8(call)
    wide = (
        [small((3, 4096), r, torch.bfloat16) for r in range(RANKS)],
        [small((5120, 4096), 7 + r, torch.bfloat16) for r in range(RANKS)],
    )
    wanted = truth(wide[0], [part[:64] for part in wide[1]])  # of some columns: FP64 takes its time
    found["library"] = [
        str(op.explain(*(part[rank] for part in wide), comm=comm)),
        float((call(*wide)[:, :64].double() - wanted).norm() / wanted.norm()),
        dict(DISPATCH.stats().fallbacks),
    ]
    group = group_of(op.group(Terms(comm, force=SLICED["four"]))[0])
    before = group.pool.bytes
    for m in (64, 3, 64, 17):
        call([small((m, 40), r, torch.float32) for r in range(RANKS)], weight, "four")
    with torch.inference_mode(False), torch.no_grad():  # on scratch that was made in inference mode
        call([small((64, 40), r, torch.float32) for r in range(RANKS)], [w.clone() for w in weight], "four")
    found["scratch"] = [before, group.pool.bytes]
    found |= blocks(op, comm, rank)
    return found


def fp8(call):
    """FP8 by rows on both paths against the dequantised inputs; and torch's quantisation against the oracle."""
    generator = torch.Generator().manual_seed(3)
    x = [torch.randn(33, 48, generator=generator).to(torch.bfloat16) for _ in range(RANKS)]
    x[1][5, 7] = float("inf")
    x[0][6] = 0
    full = [torch.randn(32, 48, generator=generator) for _ in range(RANKS)]
    codes, scales = zip(*(quantise_rows(w) for w in full), strict=True)
    errors = {}
    for nonfinite in ("nan", "clean"):
        parts = []
        for part in x:
            bits = part.view(torch.int16).numpy().view("uint16")
            oracle, oracle_scales = oracle_rows(bits, "bfloat16", nonfinite)
            mine, mine_scales = quantise_rows(part, nonfinite)
            assert (mine.view(torch.uint8).numpy() == oracle).all()
            assert torch.equal(
                mine_scales[:, 0].nan_to_num(-1), torch.from_numpy(oracle_scales).nan_to_num(-1)
            )
            values = torch.from_numpy(from_e4m3(oracle).astype("float64"))
            parts.append(values * mine_scales.double())
        weights = [c.double() * s.double() for c, s in zip(codes, scales, strict=True)]
        wanted = truth(parts, weights)
        for how in (PLAIN, "uneven"):
            scale = scales[distributed.get_rank()].flatten()
            result = call(x, codes, how, weight_scale=scale, nonfinite=nonfinite).double()
            rows = ~wanted.isnan().any(dim=1)
            lost = int(result.isnan().all(dim=1).sum())
            error = (result - wanted)[rows].norm() / wanted[rows].norm()
            errors[f"{nonfinite} {how}"] = [float(error), lost, int((~rows).sum())]
    return errors


def blocks(op, comm, rank):
    """A model with the feature off, on, compiled, and off again."""
    model = Block(rank)
    inputs = [torch.randn(m, 16, generator=torch.Generator().manual_seed(m + 100 * rank)) for m in (1, 7, 40)]
    off = [model(x) for x in inputs]
    skipped = op.install(model, comm)
    done = op.install(model, comm, force=SLICED["late"])
    state = op.state()
    on = [model(x) for x in inputs]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend=sys.argv[4], dynamic=True)
    traced = [compiled(x) for x in inputs]
    done.uninstall()
    back = [model(x) for x in inputs]
    again = op.install(model, comm, force=SLICED["late"])
    twice = [model(x) for x in inputs]
    again.uninstall()

    def near(a, b):
        return all(torch.allclose(one, other, atol=1e-4) for one, other in zip(a, b, strict=True))

    weight = model.o_proj.weight
    direct = torch.compile(
        lambda x: op(x, weight, comm=comm, bias=x.new_ones(24)) * 2, fullgraph=True, backend=sys.argv[4]
    )  # of a layer group that nobody has asked for before
    wanted = [2 * op(x, weight, comm=comm, bias=x.new_ones(24)) for x in inputs]
    name, group = op.group(Terms(comm))
    groups.clear()  # as in a process that has loaded a graph and traced nothing
    op._groups.clear()
    named = torch.ops.kernwright.linear_all_reduce
    again = [2 * named(x, weight, None, x.new_ones(24), name) for x in inputs]
    try:
        group_of(name.replace("comm0", "comm9"))
    except ValueError as error:
        unknown = str(error)

    return {
        "unforced": skipped.skipped,
        "installed": [done.routed, done.skipped],
        "state": [state, op.state()],
        "alike": [near(off, on), near(on, traced), all(map(torch.equal, off, back)), near(off, twice)],
        "direct": near([direct(x) for x in inputs], wanted),
        "by name": [near(again, wanted), group_of(name) is not group, unknown],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = int(sys.argv[1])
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=own, world_size=RANKS)
    with torch.inference_mode():
        result = main(own)
    Path(sys.argv[3]).write_text(json.dumps(result))
    distributed.destroy_process_group()
