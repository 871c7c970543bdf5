"""Whether the GPU is free of other processes and at full clocks, by NVML before and after every group of samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .host_lock import host_lock

if TYPE_CHECKING:
    import torch

POWER_CAP = 0x04

THROTTLES: Mapping[int, str] = {
    POWER_CAP: "the power cap",
    0x08: "a hardware slowdown",
    0x20: "software thermal limits",
    0x40: "hardware thermal limits",
    0x80: "the power brake",
}
"""NVML's clock event reasons that make a GPU slower than it could be; idling and fixed clocks aren't among them."""

CLOCK_TOLERANCE = 0.05
"""How much the SM clock may differ before and after a group."""

LOCK_SECONDS = 600
"""How long to wait for another benchmark of this host to finish with the GPU."""


class HealthUnknown(Exception):
    """NVML isn't available, so no figure could be trusted."""


class GpuBusy(Exception):
    """Another benchmark of this host holds the GPU."""


@dataclass(frozen=True)
class Snapshot:
    foreign: tuple[int, ...]
    """Process IDs on the GPU that aren't of this job."""
    sm_mhz: int
    throttles: int
    """Bits of NVML's clock event reasons."""
    ecc_errors: int
    """Uncorrected since the driver was loaded; 0 where the GPU doesn't count."""


def problem(before: Snapshot, after: Snapshot) -> str | None:
    """Why what was measured between two snapshots isn't valid; None if it is."""
    foreign = sorted({*before.foreign, *after.foreign})
    if foreign:
        return f"foreign process on the GPU: {', '.join(map(str, foreign))}"
    throttles = [name for bit, name in THROTTLES.items() if (before.throttles | after.throttles) & bit]
    if throttles:
        return f"throttled by {' and '.join(throttles)}"
    if abs(after.sm_mhz - before.sm_mhz) > CLOCK_TOLERANCE * max(before.sm_mhz, after.sm_mhz):
        return f"SM clock went from {before.sm_mhz} to {after.sm_mhz} MHz"
    if after.ecc_errors > before.ecc_errors:
        return f"{after.ecc_errors - before.ecc_errors} uncorrected ECC errors"
    return None


@dataclass(frozen=True)
class UnderPowerCap:
    """A GPU as a run of large GEMMs sees it: it reaches the power cap of a healthy GPU, and the clock follows.

    Samples alternate, so all entries run into the cap alike; neither it nor the clock makes a group invalid.
    """

    watch: Monitor

    @property
    def driver(self) -> str:
        return self.watch.driver

    def snapshot(self) -> Snapshot:
        """Ask now; the clock is left out."""
        found = self.watch.snapshot()
        return replace(found, throttles=found.throttles & ~POWER_CAP, sm_mhz=0)


class Monitor:
    def __init__(self, nvml: Any, handle: Any, ours: frozenset[int]) -> None:
        """Use `monitor` instead, which opens NVML and closes it."""
        self._nvml, self._handle, self._ours = nvml, handle, ours

    @property
    def driver(self) -> str:
        return str(self._nvml.nvmlSystemGetDriverVersion())

    def snapshot(self) -> Snapshot:
        nvml, handle = self._nvml, self._handle
        try:
            pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            return Snapshot(
                foreign=foreign(pids, self._ours),
                sm_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                throttles=nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
                ecc_errors=self._ecc(),
            )
        except nvml.NVMLError as error:
            raise HealthUnknown(
                f"NVML stopped answering for this GPU: {error}; nothing more is timed"
            ) from error

    def _ecc(self) -> int:
        nvml = self._nvml
        try:
            return int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    self._handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        except nvml.NVMLError:  # a GPU without ECC
            return 0


def foreign(pids: list[int], ours: frozenset[int]) -> tuple[int, ...]:
    """The processes that aren't ours.

    Inside a container NVML may name processes by the host's IDs: then none is ours by name, and as many as we
    are, the lowest, are taken to be us.
    """
    others = sorted(pid for pid in pids if pid not in ours)
    if len(others) == len(pids):
        others = others[len(ours) :]
    return tuple(others)


@contextmanager
def monitor(device: torch.device, ours: frozenset[int] | None = None) -> Iterator[Monitor]:
    """Watch a GPU, and hold this host's lock on it; `ours` are the process IDs of this job, by default this one.

    Raises:
        HealthUnknown: NVML isn't installed or doesn't know the GPU.
        GpuBusy: another benchmark held the GPU for too long.
    """
    import torch

    try:
        import pynvml
    except ImportError:
        raise HealthUnknown(
            "nvidia-ml-py isn't installed, so foreign load and throttling would go unseen: pip install nvidia-ml-py"
        ) from None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError as error:
        raise HealthUnknown(f"NVML doesn't answer for GPU {uuid}: {error}") from error
    try:
        with _held(uuid):
            yield Monitor(pynvml, handle, ours or frozenset({os.getpid()}))
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def _held(uuid: str) -> Iterator[None]:
    """This host's lock of a GPU."""
    with ExitStack() as stack:
        try:
            stack.enter_context(host_lock(f"kernwright-{uuid}", LOCK_SECONDS))
        except TimeoutError as error:
            raise GpuBusy(f"another benchmark holds GPU {uuid} ({error}); wait for it") from None
        except OSError as error:
            raise GpuBusy(f"could not take the lock of GPU {uuid}: {error}; remove what is there") from error
        yield
