"""What is left of a process group when a linear has used it: nothing, so that Gloo's threads don't meet the exit.

A thread of Gloo that releases a tensor takes the GIL. While the interpreter exits, Python before 3.14 ends such a
thread by `pthread_exit`, in the middle of a C++ destructor: "terminate called without an active exception". The
group's own destructor joins the threads, so nothing of ours may keep a group that was destroyed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kernwright
import pytest

PROCESS = """
import os, sys
import torch, torch.distributed as dist
from kernwright.generated.dispatch import DISPATCH, all_reduce, linear_all_reduce
from kernwright.families.linear_all_reduce.overlap.rows import SliceSchedule

rank, ranks, store, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
comm = DISPATCH.communicator()
x, weight = torch.randn(17, 40), torch.randn(24, 40)
def calls():
    with torch.inference_mode():
        linear_all_reduce(x, weight, comm=comm, force=SliceSchedule("sliced_nccl", (1, 1, 1, 1)))
        linear_all_reduce(x, weight, comm=comm)
        all_reduce(x, comm=comm)
try:
    calls()
    DISPATCH.torch_ops()
    if how == "raises":
        raise KeyError("in flight")
except KeyError:
    comm = None
finally:
    if how == "closed":
        comm.close()
    dist.destroy_process_group()
threads = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
print("gloo threads:", [name for name in threads if "gloo" in name])
"""


def ended(folder: Path, ranks: int, how: str) -> list[tuple[int, str]]:
    """Return codes and output of processes that use a linear and leave."""
    source = Path(kernwright.__file__).parents[1]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(ranks), str(folder / "store"), how],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate(timeout=200)[0] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="names of threads are read from /proc")
@pytest.mark.parametrize("how", ["open", "closed", "raises"])
def test_a_destroyed_group_leaves_no_thread(tmp_path: Path, how: str) -> None:
    ((code, said),) = ended(tmp_path, 1, how)
    assert code == 0, said
    assert said.splitlines()[-1] == "gloo threads: []"


@pytest.mark.long
@pytest.mark.parametrize("how", ["open", "closed", "raises"])
def test_two_ranks_leave_again_and_again(tmp_path: Path, how: str) -> None:
    for turn in range(17):
        folder = tmp_path / str(turn)
        folder.mkdir()
        for code, said in ended(folder, 2, how):
            assert code == 0, said
            assert "terminate called" not in said
