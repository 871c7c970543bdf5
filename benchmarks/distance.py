"""How far the contract is from the truth, next to torch eager, torch.compile and Triton, on equal inputs.

`python benchmarks/distance.py OUT.json`: relative L2 from the unrounded FP64 function, boundary by boundary along
a chain of 96 with distinct weights; every entry gets the inputs that the control's chain has there.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import torch
from kernwright.evidence.oracle.closeness import relative_l2
from kernwright.families.hyper_connection.evidence import EVIDENCE, shape_of
from kernwright.families.hyper_connection.truth import boundary as truth
from kernwright.generated.dispatch import DISPATCH
from kernwright.runtime.device import current, serves

INPUTS = ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight")
OUTPUTS = ("x", "block_input", "injection_out")


def distances(work, device: torch.device) -> dict[str, dict[str, dict[str, float]]]:
    """Median, mean and largest relative L2 of each output, by entry."""
    here = current(device)
    chain = EVIDENCE.chain(work, device, 500)
    arch = serves(work.control.builds, here.arch)
    control = DISPATCH.plan_named(work.label, work.control.name, arch, "boundary", here)
    entries = {f"kernwright {work.control.name}": control}
    entries |= {
        f"kernwright {c.name}": DISPATCH.plan_named(work.label, c.name, own, "boundary", here)
        for c in work.candidates
        if c.contract != "exact" and (own := serves(c.builds, here.arch))
    }
    entries |= {name: prepare(chain) for name, prepare in EVIDENCE.baselines(work).items()}
    states = [chain.first, *chain.run(control)[:-1]]
    found: dict[str, dict[str, list[float]]] = {name: {out: [] for out in OUTPUTS} for name in entries}
    for state, weights in zip(states, chain.weights, strict=True):
        inputs = [*state, *weights]
        wanted = truth(shape_of(work), dict(zip(INPUTS, inputs, strict=True)), rounded=False)
        for name, call in entries.items():
            for out, tensor in zip(OUTPUTS, call(inputs), strict=True):
                found[name][out].append(relative_l2(tensor, wanted[out]))
    return {
        name: {
            out: {"median": statistics.median(v), "mean": statistics.mean(v), "max": max(v)}
            for out, v in by_output.items()
        }
        for name, by_output in found.items()
    }


def main() -> None:
    """Every boundary of the library that a rank computes alone; prints a table and writes JSON."""
    device = torch.device("cuda", 0)
    document = {}
    for work in DISPATCH.table.workloads:
        if work.family != "hyper_connection" or work.fields["world_size"] != 1:
            continue
        document[work.label] = distances(work, device)
        print(f"{work.label}: mean relative L2 from FP64 a boundary, and its ratio to torch eager's")
        eager = document[work.label]["torch eager"]
        for name, by_output in document[work.label].items():
            figures = (
                f"{out} {v['mean']:.3e} ({v['mean'] / eager[out]['mean']:.3f}x)"
                for out, v in by_output.items()
            )
            print(f"  {name:24s} {'  '.join(figures)}")
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "figures/distance.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
