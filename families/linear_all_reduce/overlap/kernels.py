"""A candidate's kernels, each launched by itself with arguments by name, and copies between addresses."""

from __future__ import annotations

from collections.abc import Mapping

from ....runtime.current import current_stream
from ....runtime.launch import LaunchSequence, Module
from ....table import Candidate

DEVICE_TO_DEVICE = 3  # cudaMemcpyDeviceToDevice; also where the devices are two


class Kernels:
    """Launches on torch's current stream of a device."""

    def __init__(
        self, module: Module, candidate: Candidate, constants: Mapping[str, bytes], index: int
    ) -> None:
        """Resolve names.

        Args:
            module: the candidate's build.
            candidate: whose kernels.
            constants: arguments that never change, as the bytes that kernels take.
            index: ordinal of the device.

        Raises:
            LoadError: a kernel isn't in the module.
        """
        self._index = index
        self._sequences: dict[str, tuple[LaunchSequence, list[str]]] = {}
        for name, kernel in candidate.kernels.items():
            order = [argument for argument in kernel.args if argument not in constants]
            fixed = {argument: constants[argument] for argument in kernel.args if argument in constants}
            self._sequences[name] = LaunchSequence(module, [kernel], order, fixed), order

    def __call__(self, kernel: str, **values: int) -> None:
        """Launch a kernel; doesn't wait."""
        sequence, order = self._sequences[kernel]
        sequence([values[name] for name in order], current_stream(self._index))

    def copy(self, target: int, source: int, size: int) -> None:
        """Let a copy engine move `size` bytes between two addresses that this process can reach."""
        from cupy_backends.cuda.api import runtime

        runtime.memcpyAsync(target, source, size, DEVICE_TO_DEVICE, current_stream(self._index))
