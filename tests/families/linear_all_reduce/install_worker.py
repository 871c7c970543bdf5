"""What one of two ranks finds when it installs on engines' layers; `install_worker.py RANK STORE RESULT`."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import engines
import torch
import torch.distributed as distributed
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule
from kernwright.generated.dispatch import DISPATCH, linear_all_reduce

FORCED = SliceSchedule("sliced_nccl", (1, 1, 1), min_m=4)
op: Any = linear_all_reduce


def model_of(rank: int) -> torch.nn.ModuleDict:
    vllm, sglang = engines.VllmUnquantized(), engines.SglangUnquantized()
    fp8 = engines.VllmRowParallel(16, 16, engines.VllmFp8(), rank)
    fp8.weight = torch.nn.Parameter(fp8.weight.to(torch.float8_e4m3fn).t(), requires_grad=False)
    fp8.weight_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    unstated = engines.Plain(24, 16, rank)
    del unstated.tp_rank
    elsewhere = engines.Plain(24, 16, rank)
    elsewhere.tp_rank = 1 - rank
    one_sided = engines.Plain(24, 16, rank)
    one_sided.reduce_results = rank == 0
    alone = engines.VllmRowParallel(24, 16, vllm, rank)
    alone.return_bias = False
    return torch.nn.ModuleDict(
        {
            "vllm": engines.VllmRowParallel(24, 16, vllm, rank),
            "vllm_alone": alone,
            "vllm_bf16": engines.VllmRowParallel(24, 16, vllm, rank, dtype=torch.bfloat16),
            "vllm_bias": engines.VllmRowParallel(24, 16, vllm, rank, bias=True),
            "vllm_fp8": fp8,
            "vllm_lora": engines.VllmRowParallelWithLora(engines.VllmRowParallel(24, 16, vllm, rank)),
            "sglang": engines.SglangRowParallel(24, 16, sglang, rank),
            "sglang_flagged": engines.SglangFlagged(24, 16, sglang, rank),
            "sglang_lora": engines.SglangRowParallelWithLora(engines.SglangRowParallel(24, 16, sglang, rank)),
            "plain": engines.Plain(24, 16, rank),
            "plain_square": engines.Plain(16, 16, rank),
            "transposed": engines.StoredTransposed(16, rank),
            "as_served": engines.StoredAsServed(16, rank),
            "averaging": engines.Averaging(24, 16, rank),
            "fails": engines.Fails(24, 16, rank),
            "pairs": engines.Pairs(24, 16, rank),
            "raises": engines.Raises(24, 16, rank),
            "unstated": unstated,
            "elsewhere": elsewhere,
            "one_sided": one_sided,
        }
    )


def result_of(layer: torch.nn.Module, x: torch.Tensor, **named: Any) -> Any:
    try:
        return layer(x.to(torch.bfloat16) if layer.weight.dtype == torch.bfloat16 else x, **named)
    except RuntimeError as error:
        return str(error)


def near(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(near, a, b))
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and a == b
    return (
        a.shape == b.shape
        and a.dtype == b.dtype
        and bool((a.float() - b.float()).norm() < 0.07 * a.float().norm())
    )


def main(rank: int) -> dict[str, object]:
    comm = DISPATCH.communicator()
    model = model_of(rank)
    inputs = [torch.randn(m, 16, generator=torch.Generator().manual_seed(m + 100 * rank)) for m in (1, 2, 9)]
    read = [{k: v for k, v in vars(layer).items() if not k.startswith("_")} for layer in model.modules()]

    def results(layers: Any = model) -> dict[str, Any]:
        # Rank 1's part of `one_sided` doesn't reduce, so nobody can call it.
        called = {name: layer for name, layer in layers.items() if name != "one_sided"}
        return {name: [result_of(layer, x) for x in inputs] for name, layer in called.items()}

    off = results()
    done = op.install(model, comm, force=FORCED)
    on = results()
    calls = op.group(done_terms(comm))[1]
    found: dict[str, object] = {
        "routed": list(done.routed),
        "skipped": done.skipped,
        "differ": [name for name in off if not near(off[name], on[name])],
        "report": str(done).splitlines()[:2],
    }
    changed = []
    for layer, before in zip(model.modules(), read, strict=True):
        now = {k: v for k, v in vars(layer).items() if not k.startswith("_") and k != "forward"}
        changed += [key for key in before if now.get(key) is not before[key] and now.get(key) != before[key]]
    found["changed attributes"] = changed
    found |= other_callers(model, comm, inputs, rank, calls)
    found["double"] = op.install(model, comm, force=FORCED).skipped["plain"]
    done.uninstall()
    found["left"] = [name for name, layer in model.named_modules() if "forward" in vars(layer)]
    found["back"] = [name for name, was in results().items() if not exact(off[name], was)]
    unchecked = op.install(model, comm, force=FORCED, check=False)
    found["unchecked"] = [list(unchecked.routed), unchecked.skipped["plain"]]
    unchecked.uninstall()
    found["unserved"] = [
        op.install(model, comm, force="no_such").skipped["plain"],
        op.install(model, comm, force=SliceSchedule("sliced_sm", (1, 1))).skipped["plain"],
    ]
    return found


def exact(a: Any, b: Any) -> bool:
    if isinstance(a, (tuple, list)):
        return all(map(exact, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


def done_terms(comm: Any) -> Any:
    from kernwright.families.linear_all_reduce.op import Terms

    return Terms(comm, force=FORCED)


class Counting:
    """Counts the calls of a layer group that are cut into slices."""

    def __init__(self, group: Any) -> None:
        self.group, self.rows = group, []
        self.decide, group.decide = group.decide, self

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
        self.rows.append(x.shape[0])
        return self.decide(x, weight)


def other_callers(model: Any, comm: Any, inputs: Any, rank: int, group: Any) -> dict[str, object]:
    """Options, reloads, copies, pickles, grad, autocast, threads: what is routed and what it gives."""
    counting, x = Counting(group), inputs[2]
    out: dict[str, object] = {}

    def routed(call: Any) -> bool:
        before = len(counting.rows)
        call()
        return len(counting.rows) > before

    layer, sglang, vllm = model["plain"], model["sglang"], model["vllm"]
    partial = torch.nn.functional.linear(x, sglang.weight)
    out["options"] = [
        routed(lambda: sglang(x)),
        routed(lambda: sglang(x, skip_all_reduce=False)),
        routed(lambda: sglang(x, skip_all_reduce=True)),
        routed(lambda: sglang(x, True)),
        routed(lambda: vllm(input_=x)),
        torch.equal(sglang(x, skip_all_reduce=True)[0], partial),
    ]
    lora = engines.VllmRowParallelWithLora(vllm)  # wrapped after the installation
    out["wrapped later"] = near(lora(x)[0], vllm(x)[0] + 2.0)
    weight = layer.weight
    layer.weight = torch.nn.Parameter(2 * weight, requires_grad=False)
    doubled = layer(x)
    layer.weight = torch.nn.Parameter(weight.to(torch.bfloat16), requires_grad=False)
    other = [routed(lambda: layer(x.bfloat16())), near(layer(x.bfloat16()).float() * 2, doubled)]
    layer.weight = weight
    out["reload"] = [near(layer(x) * 2, doubled), *other]
    layer.reduce_results = False
    out["stops reducing"] = [routed(lambda: layer(x)), torch.equal(layer(x), layer.multiply(x))]
    layer.reduce_results = True
    twin = copy.deepcopy(layer)
    twin.weight = torch.nn.Parameter(3 * weight, requires_grad=False)
    out["copy"] = [routed(lambda: twin(x)), near(twin(x), 3 * layer(x)), type(vars(twin)["forward"]).__name__]
    loaded = pickle.loads(pickle.dumps(layer))
    stored = io.BytesIO()
    torch.save(layer, stored)
    out["pickle"] = [routed(lambda: loaded(x)), near(loaded(x), layer(x)), sorted(layer.state_dict())]
    again = op.install(torch.nn.ModuleDict({"twin": twin}), comm, force=FORCED)
    out["copies may be routed"] = [list(again.routed), routed(lambda: twin(x)), near(twin(x), 3 * layer(x))]
    again.uninstall()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out["autocast"] = [routed(lambda: layer(x)), str(layer(x).dtype)]
    weight.requires_grad_(True)
    out["grad"] = [routed(lambda: layer(x)), routed(lambda: torch.no_grad()(layer)(x))]
    weight.requires_grad_(False)
    wrapped = model["plain_square"]
    inner, wrapped.forward = wrapped.forward, lambda given: inner(given) + 1.0
    inner.leave()
    out["wrapped by others"] = [
        routed(lambda: wrapped(x)),
        near(wrapped(x), type(wrapped).forward(wrapped, x) + 1.0),
    ]
    wrapped.forward, inner.on = inner, True
    out["threads"] = threads(group, layer)
    group.decide = counting.decide
    return out


def threads(group: Any, layer: Any) -> bool:
    """Two threads of a process call one group, whose reduction is local here: no order is asked of the ranks."""
    right, reduce = [], group._all_reduce_in_group
    group._all_reduce_in_group = lambda partial: partial.mul_(2)

    def call(seed: int) -> None:
        with torch.inference_mode():
            for turn in range(200):
                x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1000 * seed + turn))
                wanted = 2 * torch.nn.functional.linear(x, layer.weight)
                right.append(torch.allclose(layer(x), wanted, atol=1e-4))

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    made = [threading.Thread(target=call, args=(seed,)) for seed in range(2)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()
    sys.setswitchinterval(switch)
    group._all_reduce_in_group = reduce
    return all(right) and len(right) == 400


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = int(sys.argv[1])
    distributed.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=own, world_size=2)
    Path(sys.argv[3]).write_text(json.dumps(main(own)))
    distributed.destroy_process_group()
