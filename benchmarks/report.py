"""Writes docs/measured.md and its plots from the figures and records of the ledger: no figure in it is typed.

python benchmarks/report.py
python benchmarks/report.py --trace trace_sm_16_m8192_w5120_k4096.json   # of linear_all_reduce.py --trace
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from kernwright.generated.dispatch import TABLE
from kernwright.ledger.reader import read_records
from kernwright.table import RecordLine, Workload

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "ledger" / "figures"
DOCUMENT = ROOT / "docs" / "measured.md"
TIMELINE = "linear_timeline.json"
LINEAR = ("linear_all_reduce_h200_x2.json", "linear_all_reduce_h200_x2_few_rows.json")
PEERS = ("PyTorch one_shot", "PyTorch two_shot", "NCCL")
SERIAL = ("serial, NCCL", "serial, two-shot", "serial, ours")
KIB = 1024
PROBE = {
    "tagged words pushed (probe)": {14: 2.31, 28: 2.38, 56: 2.52, 112: 2.88, 224: 3.53, 448: 4.82},
    "one-stage pull, start barrier only (probe)": {
        14: 3.5,
        28: 3.5,
        56: 3.6,
        112: 3.8,
        224: 4.4,
        448: 5.0,
        1792: 9.4,
        7168: 26.2,
        28672: 93.3,
    },
}
"""Microseconds by KiB of a throw-away probe on such a pair of GPUs: what the hardware allows, no claim of ours."""


def read(name: str) -> Any:
    """A file of the ledger's figures."""
    return json.loads((FIGURES / name).read_text(encoding="utf-8"))


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers are written as they come."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def all_reduce() -> str:
    """The sweep of payloads: the dispatched route, where the input lies in symmetric memory and where it doesn't."""
    found = read("all_reduce_h200_x2.json")
    rows = []
    for row in found["all_reduce"]["sweep"]:
        us = {name: entry["us"] for name, entry in row["entries"].items()}
        ours = [us["dispatched symmetric"], us["dispatched"]]
        peers = [us[name] for name in PEERS]
        ratios = [row["dispatched_symmetric_over_best_pytorch"], row["dispatched_over_best_pytorch"]]
        shown = [f"{time:.2f}" for time in (*ours, *peers)]
        rows.append([row["bytes"] // KIB, *shown, *(f"{ratio:.3f}" for ratio in ratios)])
    head = [
        "KiB",
        "ours, symmetric",
        "ours, staged",
        *PEERS,
        "symmetric / best PyTorch",
        "staged / best PyTorch",
    ]
    return (
        f"## All-reduce, two ranks\n\nTwo {found['device']}, torch {found['torch']}, NCCL {found['nccl']}, BF16, "
        f"microseconds a call, {found['calls_in_a_graph']} calls in a graph, in turns, the slower rank. "
        "PyTorch's ops take their input from symmetric memory and leave the sum there or in a new "
        "tensor: `symmetric` is "
        f"the same case, `staged` copies first.\n\n{markdown(head, rows)}\n\n"
        f"{checked(found['all_reduce']['checks'])}\n\n"
        "![Microseconds by payload](figures/all_reduce.svg)\n"
    )


def checked(checks: Mapping[str, Mapping[str, Any]]) -> str:
    """What was checked in the same run, how often, and how many values were wrong."""
    wrong = sum(entry["wrong"] for entry in checks.values())
    done = (f"{name} ({entry.get('calls', entry.get('replays', 1))})" for name, entry in checks.items())
    return f"Checked by the same script: {', '.join(done)}; {wrong} wrong values."


def linears() -> str:
    """Row-parallel linears: every arm, and which the records dispatch."""
    found, measured = read(LINEAR[0]), linear_rows()
    most = max((row["us"] for row in measured), key=len)
    sliced = [name for name in most if name.split("_")[0] in ("sm", "copies", "nccl")]
    rows = []
    for row in measured:
        us, chosen = row["us"], taken(row)
        best = min(us[name] for name in SERIAL)
        now = us["serial, ours" if chosen == "serial" else chosen]
        arms = [f"{us[name]:.0f}" if name in us else "" for name in (*SERIAL, "serial_sm", *sliced)]
        rows.append(
            [row["m"], row["width"], row["k"], f"{us['GEMM alone']:.0f}", *arms, chosen, f"{best / now:.3f}"]
        )
    head = ["M", "N", "K", "GEMM", *SERIAL, "serial_sm", *sliced, "dispatched", "gain over best serial"]
    return (
        f"## Row-parallel linears, two ranks\n\nTwo {found['device']}, BF16, K of one rank, microseconds a call, "
        f"{found['calls_in_a_graph']} calls in a graph, in turns; up to 2,048 rows from a second run. `dispatched` "
        f"is what the records of these runs admit{resting_on()}, and its gain that of its own arm."
        f"{of_earlier_code()}\n\n"
        f"{markdown(head, rows)}\n"
        f"\n{checked(read('linear_all_reduce_checks.json')['checks'])}\n"
    )


def resting_on() -> str:
    """What the linears' admitting records rest on where it isn't an interval over blocks, in brackets."""
    records = [
        record for work in TABLE.workloads if work.family == "linear_all_reduce" for record in of_today(work)
    ]
    admitted = [record.basis for record in records if record.verdict == "admitted"]
    bases = sorted({basis.partition("; ")[0] for basis in admitted if basis})
    if not bases:
        return ""
    unsettled = sum(bool(basis) for basis in admitted)
    return (
        f" ({unsettled} of {len(admitted)} rest on {listed(bases)}, measured before blocks were taken anew)"
    )


def listed(texts: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def linear_rows() -> list[dict[str, Any]]:
    """The rows of both runs by M and shape; where both have one, that of the second."""
    found = {(row["m"], row["width"], row["k"]): row for name in LINEAR for row in read(name)["rows"]}
    return [found[key] for key in sorted(found)]


def taken(row: Mapping[str, Any]) -> str:
    """The candidate that the records of today's code dispatch for a shape."""
    for work in TABLE.workloads:
        if work.family == "linear_all_reduce" and (work.fields["width"], work.fields["k"]) == (
            row["width"],
            row["k"],
        ):
            low, high = work.fields["m"]  # type: ignore[misc]
            if int(low) <= row["m"] <= int(high):
                admitted = [record for record in of_today(work) if record.verdict == "admitted"]
                return max(admitted, key=lambda record: record.gain or 0).candidate if admitted else "serial"
    raise ValueError(f"no workload of the library has {row['m']} rows of this shape")


def of_today(work: Workload) -> list[RecordLine]:
    """The records of a workload that measured the code which is generated now."""
    codes = {
        (candidate.name, arch): build.code
        for candidate in work.candidates
        for arch, build in candidate.builds.items()
    }
    return [
        record for record in work.records if codes.get((record.candidate, record.device.arch)) == record.code
    ]


def of_earlier_code() -> str:
    """Which of the linears' records don't count any more, in a sentence."""
    works = [work for work in TABLE.workloads if work.family == "linear_all_reduce"]
    earlier = sum(len(work.records) - len(of_today(work)) for work in works)
    if not earlier:
        return ""
    return (
        f" {earlier} of {sum(len(work.records) for work in works)} records are of kernels that have changed since: "
        "until these are measured on two GPUs, the plain path serves (`serial`)."
    )


def neighbours() -> str:
    """Boundaries behind a foreign kernel."""
    found = read("neighbours.json")
    rows = [
        [
            entry["candidate"],
            entry["edge"],
            entry["foreign"],
            f"{entry['ms']:.3f}",
            f"{entry['ratio']:.3f}",
            "{:.3f} to {:.3f}".format(*entry["interval"]),
        ]
        for entry in found["variants"]
    ]
    head = ["candidate", "its edge", "foreign kernel", "ms", f"of {found['baseline']}'s total", "95%"]
    alone = ", ".join(f"{kind} {ms:.3f}" for kind, ms in found["foreign_alone_ms"].items())
    return (
        f"## Hyper-connection boundaries behind a foreign kernel\n\n{found['device']}, {found['calls']} times (a "
        f"foreign kernel of 5 us, a boundary) in a graph, FP16. {found['baseline']}'s chain behind the "
        "ordinary kernel takes "
        f"{found['baseline_ms']:.3f} ms; the foreign kernels alone, ms: {alone}. "
        "What the library doesn't have is of `neighbour_sweep` in `benchmarks/hopper`.\n\n"
        f"{markdown(head, rows)}\n"
    )


def ablation() -> str:
    """What each stage of one_kernel costs."""
    found = read("hopper_ablation.json")
    rows = [
        [entry["left_out"], f"{entry['ms']:.4f}", f"{entry['less_ms']:+.4f}"]
        for entry in found["variants"]
        if "ms" in entry
    ]
    return (
        f"## Where the time of `{found['candidate']}` goes\n\n{found['device']}, {found['calls']} boundaries: "
        f"{found['ms']:.4f} ms; only reading the same weights {found['floor_ms']:.4f} ms. Each row leaves one "
        "thing out; results are wrong then, and the differences don't add up, because stages overlap.\n\n"
        f"{markdown(['left out', 'ms', 'ms less'], rows)}\n"
    )


def tokens() -> str:
    """Boundaries of several tokens."""
    found = read("rows.json")
    rows = []
    for count, entry in found["tokens"].items():
        times = {name: samples["median"] for name, samples in entry["milliseconds"].items()}
        for name, ms in sorted(times.items(), key=lambda item: item[1]):
            each = 1000 * ms / found["boundaries"] / int(count)
            distance = entry["relative_l2"].get(name, {}).get("block_input")
            near = "" if distance is None else f"{distance:.2e}"
            rows.append([count, name, entry["contracts"].get(name, ""), f"{ms:.3f}", f"{each:.3f}", near])
    head = [
        "tokens",
        "who",
        "contract",
        "ms",
        "us a boundary and token",
        "relative L2 of block_input from FP64",
    ]
    return (
        f"## Hyper-connection boundaries of several tokens\n\n{found['device']}, torch {found['torch']}, "
        f"{found['dtype']}, {found['boundaries']} boundaries with distinct weights in a graph.\n\n"
        f"{markdown(head, rows)}\n"
    )


def tensor_parallel() -> str:
    """Sharded boundaries of two ranks."""
    found = read("hyper_connection_tp2_h200_x2.json")
    text = "## Tensor-parallel hyper-connection boundaries, two ranks\n\n"
    text += f"Two {found['device']}, torch {found['torch']}.\n"
    for label, times in found["hyper_connection"]["times"].items():
        rows = [[name, f"{ms:.3f}"] for name, ms in sorted(times["ms"].items(), key=lambda item: item[1])]
        text += (
            f"\n{label}, ms per 96 boundaries; the replicated route and the baselines need no other GPU:\n\n"
        )
        text += f"{markdown(['who', 'ms'], rows)}\n"
    checks = found["hyper_connection"]["checks"].items()
    return (
        text
        + "\nChecked: "
        + "; ".join(f"{name}: {entry['wrong']} wrong values" for name, entry in checks)
        + ".\n"
    )


def sweeps() -> str:
    """Hopper schedules."""
    text = "## Schedules of the Hopper routes\n\nMilliseconds of 96 boundaries, FP16, a sweep a run on an H200.\n"
    for title, times in read("hopper_sweeps.json").items():
        rows = [[name, f"{ms:.4f}"] for name, ms in sorted(times.items(), key=lambda item: item[1])]
        text += f"\n{title}:\n\n{markdown(['schedule', 'ms'], rows)}\n"
    return text


def call_cost() -> str:
    """What a call costs the host."""
    found = read("call_cost.json")
    rows = [[name, f"{e['median_us']:.2f}", f"{e['least_us']:.2f}"] for name, e in found["calls"].items()]
    return (
        f"## What a call costs the host\n\n{found['device']}, torch {found['torch']}, one process, in turns, "
        f"microseconds; {found['batches']} batches.\n\n{markdown(['call', 'median', 'least'], rows)}\n"
    )


def document() -> str:
    """All of it."""
    head = (
        "# Measured\n\nWritten by `python benchmarks/report.py` from `ledger/figures` and the ledger's records; each "
        "section is one run, entries in turns. What was compared is in the scripts of `benchmarks/`. A schedule "
        "may have become faster since a section ran: what is dispatched now, and its times, is in the records "
        "([hyper_connection.md](hyper_connection.md#measured-candidates)).\n"
    )
    timeline = (
        "### Which unit is busy when\n\n![Timeline](figures/linear_timeline.svg)\n\nThe second of two calls of "
        "`sm_16`, M = 8192, N = 5120, K = 4096. Three of four reductions hide; the last one can't, and "
        "each slice's GEMM is "
        "slower than a quarter of the whole one: it has 16 SMs less and shares the memory with a reduction.\n"
    )
    parts = (
        all_reduce(),
        linears(),
        timeline,
        sweeps(),
        neighbours(),
        ablation(),
        tokens(),
        tensor_parallel(),
    )
    return "\n".join((head, *parts, call_cost()))


def plot_all_reduce(axes: Any) -> None:
    """Latency by payload, with the probe's line."""
    sweep = read("all_reduce_h200_x2.json")["all_reduce"]["sweep"]
    names = {"dispatched symmetric": "kernwright, symmetric", "dispatched": "kernwright, staged"}
    for name in (*names, *PEERS):
        points = [(row["bytes"] / KIB, row["entries"][name]["us"]) for row in sweep]
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=names.get(name, name))
    for name, times in PROBE.items():
        axes.plot(list(times), list(times.values()), linestyle="--", linewidth=1, label=name)
    axes.set(xscale="log", yscale="log", xlabel="KiB of BF16 a rank", ylabel="microseconds a call")
    axes.grid(visible=True, which="both", linewidth=0.3)
    axes.legend(fontsize=7)


def plot_timeline(axes: Any) -> None:
    """What the GPU's units do in the second of two calls."""
    for event in read(TIMELINE):
        lane = {"GEMM": 1, "reduction": 0}[event["unit"]]
        axes.broken_barh([(event["begin_us"], event["us"])], (lane - 0.4, 0.8), facecolors=f"C{lane}")
    axes.set(yticks=[0, 1], yticklabels=["reduction", "GEMM"], xlabel="microseconds")


def summarise(trace: Path) -> None:
    """Keep of a trace what the timeline shows: GEMMs and reductions of the second call."""
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    units = {"nvjet": "GEMM", "gemm": "GEMM", "linear_all_reduce_": "reduction"}
    found = [
        (event["ts"], event["dur"], unit)
        for event in events
        if event.get("cat") == "kernel"
        for start, unit in units.items()
        if event["name"].startswith(start)
    ]
    found.sort()
    second = found[len(found) // 2 :]
    begin = second[0][0]
    kept = [{"unit": unit, "begin_us": round(ts - begin, 1), "us": round(us, 1)} for ts, us, unit in second]
    (FIGURES / TIMELINE).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def add_sweep(records: Path, title: str) -> None:
    """Take the times of a sweep's newest records, the medians of their valid groups, into the figures."""
    times: dict[str, float] = {}
    files = sorted(read_records(records), key=lambda file: file.record.measured_at)
    if len(workloads := {file.record.workload for file in files}) != 1:
        raise typer.BadParameter(
            f"{records} holds records of {len(workloads)} workloads; a sweep has one: name its folder",
            param_hint="--sweep",
        )
    for file in files:
        timing, record = file.record.timing, file.record
        if timing is not None and record.candidate != record.control:
            each = [statistics.mean(group.candidate) for group in timing.valid]
            if not each:
                continue
            times[record.candidate] = round(statistics.median(each), 5)
    if not times:
        raise typer.BadParameter(
            f"{records} holds no candidate with a valid group; bench the sweep again", param_hint="--sweep"
        )
    figures = read("hopper_sweeps.json") | {title: times}
    (FIGURES / "hopper_sweeps.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main(
    trace: Annotated[Path | None, typer.Option(help="A trace to make the timeline of.")] = None,
    sweep: Annotated[Path | None, typer.Option(help="Records of a sweep of Hopper schedules to add.")] = None,
    title: Annotated[str, typer.Option(help="What the sweep is called.")] = "",
) -> None:
    """Write the document and its plots."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "kernwright"  # the same file for the same figures
    if trace is not None:
        summarise(trace)
    if sweep is not None:
        add_sweep(sweep, title or sweep.name)
    for name, draw, size in (
        ("all_reduce", plot_all_reduce, (7, 4.5)),
        ("linear_timeline", plot_timeline, (7, 1.8)),
    ):
        figure, axes = pyplot.subplots(figsize=size, layout="constrained")
        draw(axes)
        figure.savefig(DOCUMENT.parent / "figures" / f"{name}.svg", metadata={"Date": None})
    DOCUMENT.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
