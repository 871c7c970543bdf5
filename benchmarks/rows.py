"""A boundary of 1 to 512 tokens on one GPU: candidates next to torch eager, torch.compile and, for one token, Triton.

`python benchmarks/rows.py --out figures/`: milliseconds of a chain of 96 boundaries with distinct weights, in a CUDA
graph, and microseconds a boundary and token; the relative L2 of each output from the unrounded FP64 function. Times
are the evidence engine's: results checked before, healthy moments only, medians. Writes `rows.json`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from kernwright.evidence.baselines import time_baselines
from kernwright.evidence.benchmark_run import GPU, BenchmarkRun, GraphEmpty, Options
from kernwright.evidence.cells import Cell
from kernwright.evidence.health import Monitor, monitor
from kernwright.evidence.oracle.closeness import relative_l2
from kernwright.evidence.rank_context import RankContext
from kernwright.evidence.session import gpu
from kernwright.evidence.timing import Pace
from kernwright.families.hyper_connection import baselines as baselines_of_boundary
from kernwright.families.hyper_connection.evidence import BoundaryChain, shape_of
from kernwright.families.hyper_connection.truth import boundary as truth
from kernwright.generated.dispatch import DISPATCH
from kernwright.ledger import median
from kernwright.table import Workload
from kernwright.version import VERSION

INPUTS = ("residual", "block", "injection", "norm_weight", "down_weight", "up_weight")
OUTPUTS = ("x", "block_input", "injection_out")
SEED = 500
NEAR_TRUTH = 4
"""Boundaries at the beginning of the chain whose outputs are compared with FP64."""


@dataclass(frozen=True)
class OfTokens:
    """The boundary as evidence whose chain has so many tokens a call."""

    made: BoundaryChain
    tokens: int

    def chain(self, workload: Workload, device: torch.device, seed: int) -> BoundaryChain:
        """The same weights for all numbers of tokens: they are made once."""
        assert (self.made.shape.dtype, SEED) == (workload.fields["dtype"], seed)
        return self.made.of_tokens(self.tokens, device, seed)

    def baselines(self, workload: Workload) -> Mapping[str, Callable[..., Any]]:
        """What users run without us."""
        return baselines_of_boundary.of(shape_of(workload, self.tokens))


def main(
    out: Annotated[Path, typer.Option(help="Folder for rows.json.")] = Path("figures"),
    dtype: Annotated[str, typer.Option(help="float16 or bfloat16.")] = "float16",
    tokens: Annotated[list[int] | None, typer.Option(help="Tokens; by default 1 2 4 8 16 64 512.")] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="Baselines; `none` for none, by default all.")
    ] = None,
    groups: Annotated[int, typer.Option(help="Samples of each entry.")] = 7,
    replays: Annotated[int, typer.Option(help="Graph replays in a sample.")] = 5,
) -> None:
    """Time and print, number of tokens by number of tokens."""
    device, started = gpu(), time.monotonic()
    options = Options(
        pace=Pace(groups, replays, 2 * groups),
        peers=None if not peer else tuple(name for name in peer if name != "none"),
    )
    document: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "kernwright": VERSION,
        "dtype": dtype,
        "scope": "chain",
        "tokens": {},
    }
    made = BoundaryChain.make(serving(1, dtype), device, SEED)
    document["boundaries"], document["bytes"] = made.calls, made.bytes
    with torch.no_grad(), monitor(device) as watch:
        for count in tokens or (1, 2, 4, 8, 16, 64, 512):
            found = of_tokens(OfTokens(made, count), dtype, device, watch, options)
            document["tokens"][str(count)] = found
            for line in lines(count, found, made.calls):
                print(line, flush=True)
            print(f"  {time.monotonic() - started:.0f} s so far", flush=True)
            torch.cuda.empty_cache()
    out.mkdir(parents=True, exist_ok=True)
    (out / "rows.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {out / 'rows.json'}")


def serving(tokens: int, dtype: str) -> Workload:
    """The library's workload of HC4, H2560, R320 on one rank that serves so many tokens."""
    wanted = {"dtype": dtype, "branches": 4, "hidden": 2560, "low_rank": 320, "world_size": 1}
    for work in DISPATCH.table.workloads:
        if work.family == "hyper_connection" and all(
            work.fields[name] == value for name, value in wanted.items()
        ):
            low, high = work.fields["tokens"]
            if low <= tokens <= high:
                return work
    raise typer.BadParameter(
        f"the library serves no {dtype} boundary of {tokens} tokens", param_hint="--tokens"
    )


def of_tokens(
    evidence: OfTokens, dtype: str, device: torch.device, watch: Monitor, options: Options
) -> dict[str, Any]:
    """Times and distances of all entries for one number of tokens."""
    work = serving(evidence.tokens, dtype)
    cell = Cell(RankContext(device), None, evidence.tokens)
    run = BenchmarkRun(DISPATCH, evidence, work, cell, watch, options, GPU)
    times: dict[str, tuple[float, ...]] = {}
    contracts: dict[str, str] = {}
    for candidate in (run.control, *(c for c in work.candidates if c is not run.control)):
        if not run.own(candidate):
            continue
        contracts[candidate.name] = candidate.contract
        try:
            times[candidate.name] = run.alone(run.graph(candidate))
        except GraphEmpty as error:
            run.notes.append(str(error))
    times |= time_baselines(run, lambda _name: None)
    if evidence.tokens == 1:
        times["read floor"] = run.alone(run.capture(run.chain.read()))
    return {
        "workload": work.label,
        "control": run.control.name,
        "contracts": contracts,
        "milliseconds": {name: {"median": median(t), "samples": list(t)} for name, t in times.items() if t},
        "relative_l2": dict(distances(run, [c for c in work.candidates if c.name in times])),
        "notes": run.notes,
    }


def distances(run: BenchmarkRun, candidates: list[Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Mean relative L2 of each output from unrounded FP64, every entry on the inputs of the control's chain.

    Exact candidates have the control's bits, so the control stands for them.
    """
    chain: BoundaryChain = run.chain  # type: ignore[assignment]
    control = run.call(run.control)
    calls = {c.name: run.call(c) for c in candidates if c is run.control or c.contract != "exact"}
    calls["torch eager"] = baselines_of_boundary.eager(chain.shape)
    errors: dict[str, dict[str, list[float]]] = {name: {out: [] for out in OUTPUTS} for name in calls}
    state = chain.first
    for weights in chain.weights[:NEAR_TRUTH]:
        inputs = [*state, *weights]
        wanted = truth(chain.shape, dict(zip(INPUTS, inputs, strict=True)), rounded=False)
        for name, call in calls.items():
            for out, tensor in zip(OUTPUTS, call(inputs), strict=True):
                errors[name][out].append(relative_l2(tensor, wanted[out]))
        state = control(inputs)
    for name, by_output in errors.items():
        yield name, {out: statistics.mean(found) for out, found in by_output.items()}


def lines(tokens: int, found: Mapping[str, Any], boundaries: int) -> Iterator[str]:
    """One line an entry, fastest first."""
    times = {name: entry["median"] for name, entry in found["milliseconds"].items()}
    control, compiled = times.get(found["control"]), times.get("torch.compile")
    yield f"{found['workload']}, {tokens} tokens: ms of {boundaries} boundaries, us a boundary and token"
    for name, milliseconds in sorted(times.items(), key=lambda item: item[1]):
        each = 1000 * milliseconds / boundaries / tokens
        ratios = [
            f"{other / milliseconds:5.2f}x {label}"
            for other, label in ((control, "the control"), (compiled, "torch.compile"))
            if other
        ]
        contract = " (tolerance)" if found["contracts"].get(name) == "tolerance" else ""
        yield f"  {name + contract:28s} {milliseconds:9.4f} {each:9.3f}   {'  '.join(ratios)}"
    for name, by_output in found["relative_l2"].items():
        yield f"  from FP64: {name:20s} " + "  ".join(
            f"{out} {error:.3e}" for out, error in by_output.items()
        )
    for note in found["notes"]:
        yield f"  note: {note}"


if __name__ == "__main__":
    typer.run(main)
