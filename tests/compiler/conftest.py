from __future__ import annotations

from pathlib import Path

import pytest
from kernwright.compiler.artifact import Artifact, digest
from kernwright.compiler.cache import Cache
from kernwright.compiler.resources import Resources

SCALE = """\
#include <cuda_fp16.h>
extern "C" __global__ void scale(const __half2* a, float2* b) {
    __shared__ float2 tile[32];
    tile[threadIdx.x] = __half22float2(h2exp(a[threadIdx.x]));
    __syncthreads();
    b[threadIdx.x] = tile[31 - threadIdx.x];
}
"""
"""One kernel with 256 bytes of shared memory; `h2exp` puts the header's name into the line table."""


@pytest.fixture
def scale() -> str:
    return SCALE


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def artifact() -> Artifact:
    data = bytes(range(256)) * 3 + b"\n\0\n"
    return Artifact(
        arch="sm_90",
        kind="cubin",
        source_sha256=digest(b"source"),
        sha256=digest(data),
        data=data,
        kernels={"down": Resources(registers=40, shared_bytes=256, stack_bytes=0, spill_bytes=8)},
        cached=False,
        seconds=0.25,
    )


@pytest.fixture(scope="session")
def import_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which a new process can import the package under test."""
    import kernwright

    root = tmp_path_factory.mktemp("import_root")
    (root / "kernwright").symlink_to(Path(kernwright.__file__).parent, target_is_directory=True)
    return root
