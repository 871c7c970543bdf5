"""When a group of samples counts: foreign processes, clocks, throttling and ECC errors, as NVML tells them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernwright.evidence.health import CLOCK_TOLERANCE, THROTTLES, Monitor, Snapshot, foreign, problem

QUIET = Snapshot(foreign=(), sm_mhz=1980, throttles=0, ecc_errors=0)


class Nvml:
    """As much of pynvml as a monitor asks."""

    NVML_CLOCK_SM, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self, pids=(), mhz=1980, throttles=0, ecc=0):
        self.pids, self.mhz, self.throttles, self.ecc = pids, mhz, throttles, ecc

    def nvmlDeviceGetComputeRunningProcesses(self, _handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetClockInfo(self, _handle, clock):
        assert clock == self.NVML_CLOCK_SM
        return self.mhz

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle):
        return self.throttles

    def nvmlDeviceGetTotalEccErrors(self, _handle, kind, counter):
        assert (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        if self.ecc is None:
            raise self.NVMLError("Not Supported")
        return self.ecc

    def nvmlSystemGetDriverVersion(self):
        return "570.1"


def snapshot(ours=frozenset({10}), **state):
    return Monitor(Nvml(**state), "handle", ours).snapshot()


def with_(**changes):
    return Snapshot(**({name: getattr(QUIET, name) for name in QUIET.__dataclass_fields__} | changes))


def test_a_gpu_of_our_own_at_full_clocks_is_fine():
    assert problem(QUIET, QUIET) is None
    assert snapshot(pids=(10,)) == QUIET


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_foreign_process_at_either_end_spoils_the_group(where):
    busy = with_(foreign=(77, 5))
    found = problem(busy, QUIET) if where == "before" else problem(QUIET, busy)
    assert found == "foreign process on the GPU: 5, 77"


def test_two_foreign_processes_that_changed_in_between_are_both_named():
    assert problem(with_(foreign=(5,)), with_(foreign=(9,))) == "foreign process on the GPU: 5, 9"


def test_a_snapshot_tells_ours_from_foreign():
    assert snapshot(pids=(10, 11, 3)).foreign == (3, 11)
    assert snapshot(pids=(10, 11, 3), ours=frozenset({10, 11})).foreign == (3,)
    assert snapshot(pids=()).foreign == ()


def test_in_a_container_the_host_names_the_processes():
    """NVML names 4242 what we know as 10: the only process on the GPU is us, a second one isn't."""
    assert snapshot(pids=(4242,)).foreign == ()
    assert snapshot(pids=(4242, 4999)).foreign == (4999,)
    assert snapshot(pids=(900, 901, 902), ours=frozenset({1, 2})).foreign == (902,)


@given(st.sets(st.integers(1, 50)), st.sets(st.integers(1, 50), min_size=1))
def test_as_many_are_foreign_as_are_too_many(pids, ours):
    found = foreign(sorted(pids), frozenset(ours))
    assert set(found) <= pids - ours
    known = len(pids & ours)
    assert len(found) == len(pids) - known if known else len(found) == max(0, len(pids) - len(ours))


@pytest.mark.parametrize(("bit", "name"), THROTTLES.items())
@pytest.mark.parametrize("where", ["before", "after"])
def test_every_reason_that_slows_down_spoils_the_group(bit, name, where):
    slow = with_(throttles=bit)
    pair = (slow, QUIET) if where == "before" else (QUIET, slow)
    assert problem(*pair) == f"throttled by {name}"
    assert snapshot(pids=(10,), throttles=bit).throttles == bit


def test_several_reasons_are_all_named():
    found = problem(with_(throttles=0x04), with_(throttles=0x40 | 0x01))
    assert found == "throttled by the power cap and hardware thermal limits"


@pytest.mark.parametrize(
    ("name", "bit"),
    [
        ("gpu_idle", 0x01),
        ("applications_clocks_setting", 0x02),
        ("sync_boost", 0x10),
        ("display_clock", 0x100),
    ],
)
def test_idling_and_fixed_clocks_spoil_nothing(name, bit):
    assert problem(with_(throttles=bit), with_(throttles=bit)) is None


@pytest.mark.parametrize(("before", "after"), [(2000, 1899), (1899, 2000), (1980, 345)])
def test_a_clock_that_moves_spoils_the_group(before, after):
    assert problem(with_(sm_mhz=before), with_(sm_mhz=after)) == f"SM clock went from {before} to {after} MHz"


@pytest.mark.parametrize(("before", "after"), [(2000, 1900), (1900, 2000), (1980, 1965), (0, 0)])
def test_a_clock_within_the_tolerance_is_fine(before, after):
    assert CLOCK_TOLERANCE == 0.05
    assert problem(with_(sm_mhz=before), with_(sm_mhz=after)) is None


def test_new_ecc_errors_spoil_the_group_and_old_ones_do_not():
    assert problem(with_(ecc_errors=2), with_(ecc_errors=5)) == "3 uncorrected ECC errors"
    assert problem(with_(ecc_errors=5), with_(ecc_errors=5)) is None
    assert snapshot(pids=(10,), ecc=7).ecc_errors == 7


def test_a_gpu_that_counts_no_ecc_errors_has_none():
    assert snapshot(pids=(10,), ecc=None).ecc_errors == 0


def test_the_driver_is_text():
    assert Monitor(Nvml(), "handle", frozenset()).driver == "570.1"
