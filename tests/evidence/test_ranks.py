"""Two processes with gloo on this machine: one time, one validity, one number of replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import kernwright
from kernwright.evidence.ranks import agreed, slowest

RANK = """
import json, sys
import torch.distributed as dist
from kernwright.evidence.health import Snapshot
from kernwright.evidence.ranks import agreed, slowest
from kernwright.evidence.timing import Pace, alone, paired

rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
QUIET, BUSY = Snapshot((), 1980, 0, 0), Snapshot((4242,), 1980, 0, 0)

class Watch:
    asked = 0
    def snapshot(self):  # rank 1 alone sees a foreign process during the second group
        self.asked += 1
        return BUSY if rank == 1 and self.asked == 3 else QUIET

calls = []
def sample(name, replays):
    calls.append(name)
    if rank == 0:
        return 1.0  # rank 0 is warm at once
    return max(2.0, 6.0 - len(calls)) if len(calls) < 6 else 2.0 + (name == "B")

groups = paired("A", "B", Watch(), Pace(groups=2, replays=1, most=6), sample)
single = alone("A", Watch(), Pace(groups=2, replays=1, most=6), sample)
print(json.dumps({
    "slowest": slowest(float(10 * (rank + 1))),
    "agreed": [agreed(None), agreed("hot" if rank == 1 else None), agreed(f"fault {rank}")],
    "groups": [[g.control, g.candidate, g.problem] for g in groups],
    "alone": single,
    "calls": len(calls),
}))
dist.destroy_process_group()
"""


def test_two_ranks_take_the_slower_time_and_agree_on_every_group(tmp_path):
    source = Path(kernwright.__file__).parents[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    try:
        first, second = (json.loads(process.communicate(timeout=100)[0]) for process in ranks)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert first == second  # the number of samples, too: a rank that took one more would still be waiting
    assert first["slowest"] == 20.0
    assert first["agreed"] == [None, "rank 1: hot", "rank 0: fault 0"]
    busy = "rank 1: foreign process on the GPU: 4242"
    assert first["groups"] == [
        [[2.0, 2.0], [3.0, 3.0], None],
        [[2.0, 2.0], [3.0, 3.0], busy],
        [[2.0, 2.0], [3.0, 3.0], None],
    ]
    assert first["alone"] == [2.0, 2.0]


def test_one_process_is_its_own_slowest():
    assert slowest(1.5) == 1.5
    assert agreed(None) is None
    assert agreed("hot") == "hot"
