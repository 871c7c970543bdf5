"""What all tests share: tests marked `gpu` are skipped where torch sees no GPU; fixtures of several folders."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from harness.paths import CHECKOUT, MINIATURE, ODD
from harness.scalar import Scalar
from hypothesis import settings

# How long an example takes depends on what else the machine does; pytest's own limit stops what hangs.
settings.register_profile("kernwright", deadline=None)
settings.load_profile("kernwright")

# Ranks that share a GPU wait for each other, on more streams than CUDA has hardware queues for by default: two in
# one queue would wait for ever. Read when the context is made.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
NOT_PACKAGED = (".*", "__pycache__", "*.egg-info", "artifacts", "build", "dist", "figures", "tests", "wheels")


@pytest.hookimpl(trylast=True)  # after `-m` and `-k` have selected, so that torch isn't loaded for nothing
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="no CUDA GPU here; run `make gpu` on a machine with one"))


@pytest.fixture(scope="session")
def cubin_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cubin cache that is empty at first, shared by the processes of one test run."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    return root / "cubin-cache"


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, object]]:
    """What tests on a GPU measured; written as JSON where `KERNWRIGHT_FIGURES` says."""
    measured: dict[str, object] = {}
    yield measured
    if (path := os.environ.get("KERNWRIGHT_FIGURES")) and measured:
        Path(path).write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that holds a copy of the package's sources, as `kernwright`."""
    root = tmp_path / "checkout"
    shutil.copytree(CHECKOUT, root / "kernwright", ignore=shutil.ignore_patterns(*NOT_PACKAGED))
    return root


@pytest.fixture
def make() -> ModuleType:
    """Builders of hand-made tables."""
    from harness import tables

    return tables


@pytest.fixture(scope="session")
def scalar() -> Scalar:
    """The contract's arithmetic, one number at a time."""
    return Scalar()


@pytest.fixture(scope="session")
def odd_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of small workloads, generated: its kernels run in milliseconds on the emulator."""
    from harness.workspaces import generated_workspace

    return generated_workspace(tmp_path_factory.mktemp("odd") / "evidence", ODD / "specs")


@pytest.fixture(scope="session")
def mini_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace of the small all-reduce, generated: three dtypes on two, four and eight ranks."""
    from harness.workspaces import generated_workspace

    return generated_workspace(tmp_path_factory.mktemp("mini") / "ranks", MINIATURE)
