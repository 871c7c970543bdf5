from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.compiler.resources import LogUnreadable, Resources, over_budget, parse_log

# As NVRTC 12.9 printed it for sm_70: shared memory, spills, and `up` with a called function that has neither.
SM70_LOG = """\
nvrtc: warning: Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k4' for 'sm_70'
ptxas info    : Function properties for k4
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 364 bytes cmem[0]
ptxas info    : Compile time = 7.269 ms
ptxas info    : Compiling entry function 'spilly' for 'sm_70'
ptxas info    : Function properties for spilly
ptxas         .     376 bytes stack frame, 424 bytes spill stores, 424 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 376 bytes cumulative stack size, 360 bytes cmem[0]
ptxas info    : Compile time = 12.737 ms
ptxas info    : Compiling entry function 'up' for 'sm_70'
ptxas info    : Function properties for up
ptxas         .     160 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 56 registers, used 0 barriers, 160 bytes cumulative stack size, 360 bytes cmem[0]
ptxas info    : Compile time = 17.476 ms
ptxas info    : Function properties for _Z6helperfPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'down' for 'sm_70'
ptxas info    : Function properties for down
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 256 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 1.087 ms
"""

# As NVRTC 12.9 printed it for sm_90: the spills are those of a called function that isn't inlined, compiled
# once for each kernel that calls it; the kernel's own line says that it spills nothing.
CALLEE_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'other' for 'sm_90'
ptxas info    : Function properties for other
ptxas         .     40 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 40 bytes cumulative stack size
ptxas info    : Compile time = 31.186 ms
ptxas info    : Function properties for _Z6helperPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'caller' for 'sm_90'
ptxas info    : Function properties for caller
ptxas         .     696 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 696 bytes cumulative stack size
ptxas info    : Compile time = 45.002 ms
ptxas info    : Function properties for _Z6helperPf
ptxas         .     0 bytes stack frame, 820 bytes spill stores, 968 bytes spill loads
"""


def test_several_kernels_of_one_file() -> None:
    assert parse_log(SM70_LOG) == {
        "k4": Resources(registers=12, shared_bytes=0, stack_bytes=0, spill_bytes=0),
        "spilly": Resources(registers=32, shared_bytes=0, stack_bytes=376, spill_bytes=848),
        "up": Resources(registers=56, shared_bytes=0, stack_bytes=160, spill_bytes=0),
        "down": Resources(registers=14, shared_bytes=256, stack_bytes=0, spill_bytes=0),
    }


def test_spills_of_a_called_function_count_for_the_kernel_but_it_is_no_kernel() -> None:
    assert parse_log(CALLEE_LOG) == {
        "other": Resources(registers=128, shared_bytes=0, stack_bytes=40, spill_bytes=0),
        "caller": Resources(registers=32, shared_bytes=0, stack_bytes=696, spill_bytes=820 + 968),
    }


def test_a_log_without_kernels_gives_none() -> None:
    assert parse_log("") == {}


@pytest.mark.parametrize("lost", ["Used 32", "stack frame"])
def test_a_kernel_without_its_numbers_is_not_taken_for_one_that_uses_nothing(lost: str) -> None:
    log = "\n".join(line for line in SM70_LOG.splitlines() if lost not in line)
    with pytest.raises(LogUnreadable, match=r"names the kernel \w+, but doesn't give its registers"):
        parse_log(log)


def test_over_budget_names_both_numbers() -> None:
    used = {"down": Resources(registers=40, shared_bytes=300, stack_bytes=8, spill_bytes=16)}
    assert over_budget(used, {"registers": 32, "shared_bytes": 256, "stack_bytes": 0, "spill_bytes": 0}) == [
        "down uses 40 registers; its budget is 32",
        "down uses 300 bytes of static shared memory; its budget is 256",
        "down uses 8 bytes of stack; its budget is 0",
        "down uses 16 bytes of spill stores and loads; its budget is 0",
    ]


@given(used=st.integers(0, 255), limit=st.integers(0, 255))
def test_a_budget_is_an_inclusive_upper_limit(used: int, limit: int) -> None:
    resources = {"k": Resources(registers=used, shared_bytes=9, stack_bytes=9, spill_bytes=9)}
    assert bool(over_budget(resources, {"registers": limit})) == (used > limit)


def test_a_budget_holds_for_every_kernel_given() -> None:
    assert over_budget(parse_log(SM70_LOG), {"registers": 31}) == [
        "spilly uses 32 registers; its budget is 31",
        "up uses 56 registers; its budget is 31",
    ]


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="limits smem; it can limit registers, shared_bytes"):
        over_budget({}, {"smem": 3})
