"""One mistake a kernel: each is found, and said in a sentence that names thread and line."""

from __future__ import annotations

import numpy as np
import pytest
from kernwright.emulator import DeviceBuffer, EmulatedLaunch, Interleaving, check, run
from kernwright.emulator.report import (
    Deadlock,
    Divergence,
    InputWritten,
    MisalignedAccess,
    Misuse,
    OutOfBounds,
    ScopeTooNarrow,
    Uninitialised,
    Unwritten,
)

END, BEGINNING = Interleaving(0), Interleaving(1)
"""Buffers that end at a guard page, and buffers that begin at one."""


def out(count: int = 32, dtype: str = "float32") -> DeviceBuffer:
    return DeviceBuffer.output("buffer", (count,), dtype)


def given(count: int = 32, dtype: str = "float32") -> DeviceBuffer:
    return DeviceBuffer.input("buffer", np.zeros(count, dtype))


@pytest.fixture
def fault(kernel):
    faults = kernel("faults.cu")

    def of(symbol, *args, threads=32, ctas=1, shared=0, schedule=END, launches=1):
        launch = EmulatedLaunch(faults, symbol, (ctas, 1, 1), (threads, 1, 1), args, shared)
        return run([launch] * launches, schedule).fault

    return of


@pytest.fixture
def problems(kernel):
    faults = kernel("faults.cu")
    return lambda symbol, *args: check([EmulatedLaunch(faults, symbol, (1, 1, 1), (32, 1, 1), args)]).problems


def test_a_write_past_the_end(fault):
    found = fault("writes_past_the_end", out(), np.int32(32))
    assert isinstance(found, OutOfBounds)
    assert str(found) == (
        "Out of bounds: writes_past_the_end (launch 0, rank 0), CTA (0, 0, 0), thread (0, 0, 0) at faults.cu:5 "
        "writes byte 128 of buffer of rank 0; it has 128 bytes."
    )


def test_a_write_into_the_slack_that_alignment_leaves(fault):
    """30 floats end 8 bytes before the page does: no hardware notices the first two writes."""
    found = fault("writes_past_the_end", out(30), np.int32(30), threads=2)
    assert str(found) == "Out of bounds: some thread writes byte 120 of buffer of rank 0; it has 120 bytes."


def test_a_row_past_the_end(fault):
    found = fault("writes_past_the_end", out(), np.int32(10_000))
    assert (found.buffer, found.offset, found.write) == ("buffer", 40_000, True)


def test_a_read_before_the_beginning(fault):
    found = fault("reads_before_the_beginning", given(), out(1), schedule=BEGINNING)
    assert (found.offset, found.write, found.where.line) == (-4, False, "faults.cu:8")


def test_a_null_pointer(fault):
    assert "uses the address 0x0, which belongs to no buffer" in str(fault("follows_a_null_pointer", out()))


def test_a_written_input(fault):
    found = fault("writes_its_input", given())
    assert isinstance(found, InputWritten)
    assert "thread (0, 0, 0) at faults.cu:16 writes byte 0 of buffer of rank 0" in str(found)


def test_an_index_outside_of_a_shared_array(fault):
    found = fault("leaves_the_array", out(), np.int32(1))
    assert str(found) == (
        "Out of bounds: leaves_the_array (launch 0, rank 0), CTA (0, 0, 0), thread (31, 0, 0) at faults.cu:22 "
        "uses index 32 of an array of type 'float [32]'."
    )
    assert fault("leaves_the_array", out(), np.int32(0)) is None


def test_writing_past_dynamic_shared_memory(fault):
    found = fault("leaves_dynamic_memory", out(), np.int32(1), shared=128)
    assert "writes byte 128 of dynamic shared memory; the launch gives 128 bytes" in str(found)
    assert fault("leaves_dynamic_memory", out(), np.int32(0), shared=128) is None


def test_a_misaligned_vector(fault):
    found = fault("loads_misaligned", given(64), out())
    assert isinstance(found, MisalignedAccess)
    assert (found.where.thread, found.where.line) == ((1, 0, 0), "faults.cu:33")
    assert "aligned to 16 bytes, at buffer + 4 bytes of rank 0" in found.detail


def test_reading_shared_memory_that_nobody_wrote(problems):
    (found,) = problems("reads_unwritten_shared", out())
    assert found == Uninitialised("buffer", 0, 1, 31)


def test_output_elements_that_nobody_wrote(problems):
    (found,) = problems("writes_every_second", out(64))
    assert found == Unwritten("buffer", 0, 32, 1)


def test_a_barrier_that_half_of_the_threads_reach(fault):
    found = fault("half_a_barrier", out())
    assert isinstance(found, Deadlock)
    assert found.waits == (
        "rank 0, half_a_barrier, CTA (0,0,0): 16 threads, the first is (0,0,0), waiting at barrier 0, "
        "__syncthreads (faults.cu:48)",
        "rank 0, half_a_barrier, CTA (0,0,0): 16 threads, the first is (16,0,0), waiting at barrier 1 (faults.cu:50)",
    )


@pytest.mark.parametrize(
    ("symbol", "text"),
    [
        ("two_barriers", "wait at __syncthreads in line 57 while others reach the one in line 59"),
        ("not_in_its_mask", "faults.cu:64: lane 16 isn't in the mask 0x0000ffff that it calls with"),
        ("reads_an_absent_lane", "mask 0x0000ffff reads lane 16, which doesn't take part, into lane 0"),
        (
            "masks_disagree",
            "lane 16 calls with mask 0xfffffffe while other lanes wait for an operation with mask",
        ),
    ],
)
def test_threads_that_do_not_meet(fault, symbol, text):
    found = fault(symbol, out(dtype="int32" if symbol != "two_barriers" else "float32"))
    assert isinstance(found, Divergence)
    assert text in str(found)


def test_arriving_twice_at_a_named_barrier(fault):
    assert "arrives twice at barrier 3 before it is complete" in str(fault("arrives_twice", threads=64))
    assert "is given 64 threads; it takes a multiple of 32, up to the CTA's 32" in str(fault("arrives_twice"))


@pytest.mark.parametrize(("symbol", "words"), [("polls_for_ever", 1), ("polls_several_for_ever", 4)])
@pytest.mark.parametrize("policy", ["round_robin", "random", "adversarial"])
def test_polling_what_nobody_writes(fault, symbol, words, policy):
    found = fault(symbol, given(words, "uint32"), ctas=2, schedule=Interleaving(3, policy))
    assert isinstance(found, Deadlock)
    assert "waiting for another value of buffer + " in found.waits[0]
    assert {wait.split("CTA ")[1].split(":")[0] for wait in found.waits} == {"(0,0,0)", "(1,0,0)"}


def test_a_scope_that_does_not_cover_its_users(fault):
    counter = DeviceBuffer.inout("counter", np.zeros(1, np.uint32))
    assert fault("counts_at_block_scope", counter) is None
    assert fault("counts_at_block_scope", counter, launches=2) is None  # one after the other
    found = fault("counts_at_block_scope", counter, ctas=2)
    assert isinstance(found, ScopeTooNarrow)
    assert "an atomic of block scope at counter + 0 bytes of rank 0, which several CTAs use" in str(found)


@pytest.mark.parametrize(
    ("symbol", "args", "text"),
    [
        ("traps", (out(dtype="int32"),), "thread (3, 0, 0) at faults.cu:100: __trap() stopped the kernel"),
        (
            "divides_by_zero",
            (out(dtype="int32"), np.int32(0)),
            "an integer division by zero stopped the kernel",
        ),
        ("recurses", (out(dtype="int32"), np.int32(1000)), "used more than its 65536 bytes of stack"),
        ("converts", (out(dtype="int32"), np.float32(3e9)), "'float' that doesn't fit 'int' is converted"),
        ("waits_for_nobody", (out(dtype="uint64"),), "was never initialised"),
        ("forgets_its_copy", (out(),), "ended without waiting for its bulk copies"),
    ],
)
def test_misuse(fault, symbol, args, text):
    found = fault(symbol, *args)
    assert isinstance(found, Misuse)
    assert text in str(found)


def test_a_thread_that_lets_nobody_run(kernel):
    launch = EmulatedLaunch(
        kernel("faults.cu"), "waits_for_a_plain_variable", (1, 1, 1), (2, 1, 1), (given(1, "int32"),)
    )
    found = run([launch], patience=0.3).fault
    assert isinstance(found, Misuse)
    assert "without a barrier, shuffle, atomic or end; does it wait for a plain variable" in str(found)


def test_what_is_right_stays_right(fault):
    assert fault("recurses", out(dtype="int32"), np.int32(10)) is None
    assert fault("converts", out(dtype="int32"), np.float32(2e9)) is None


def test_a_fault_leaves_the_process_as_it_was(fault):
    for _ in range(20):
        assert fault("writes_past_the_end", out(), np.int32(32)) is not None
        assert fault("half_a_barrier", out()) is not None
        assert fault("converts", out(dtype="int32"), np.float32(1)) is None
