"""A small workspace of two specs, and the generator on it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from kernwright.generator import Generation, plan_generation, write_generation
from kernwright.generator.emit import Emission
from kernwright.specs import find_workspace

SMALL = """\
# Three branches: not a power of two, so they are divided by.
family = "hyper_connection"
name = "small"

[workload]
dtype = ["float16", "bfloat16"]
branches = 3
hidden = 64
low_rank = 32
norm_weight = "shared"

[[candidate]]
name = "control"
arch = ["sm_70", "sm_90"]
route = "replicated"
budget = { registers = 128 }

[[candidate]]
name = "strided"
arch = ["sm_90"]
route = "replicated"
down = { ctas = 2 }

[[candidate]]
name = "staged"
arch = ["sm_70", "sm_90"]
route = "replicated"
up_mix = { load_bytes = 16 }
"""

OTHER = """\
family = "hyper_connection"
name = "other"

[workload]
dtype = "float16"
branches = 2
hidden = 48
low_rank = 16

[[candidate]]
name = "control"
arch = ["sm_80"]
route = "replicated"
"""


class Lab:
    """A workspace in a folder, with the generator at hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.generated = root / "generated"
        self.spec = root / "specs" / "small.toml"

    @property
    def plan(self) -> Generation:
        return plan_generation(find_workspace(self.root))

    def generate(self) -> Emission:
        return write_generation(self.plan)

    def edit(self, old: str, new: str) -> None:
        text = self.spec.read_text(encoding="utf-8")
        assert text.count(old) == 1
        self.spec.write_text(text.replace(old, new), encoding="utf-8")

    def files(self) -> dict[str, bytes]:
        """Content of every file below generated/, but for the lock."""
        found = (path for path in sorted(self.generated.rglob("*")) if path.is_file())
        return {
            path.relative_to(self.generated).as_posix(): path.read_bytes()
            for path in found
            if path.name != ".lock" and "__pycache__" not in path.parts
        }

    def age(self) -> dict[str, int]:
        """Set all files back to long ago; gives the time of each, in ns."""
        for name in self.files():
            os.utime(self.generated / name, ns=(10**18, 10**18))
        return self.times()

    def times(self) -> dict[str, int]:
        return {name: (self.generated / name).stat().st_mtime_ns for name in self.files()}

    def touched(self) -> set[str]:
        """Files written since `age`."""
        return {name for name, time in self.times().items() if time != 10**18}


@pytest.fixture(autouse=True)
def _process_state(monkeypatch: pytest.MonkeyPatch, cubin_cache: Path) -> None:
    """Families of a workspace extend `sys.path`; cubins stay out of the user's cache."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    root = tmp_path / "lab"
    (root / "specs").mkdir(parents=True)
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    (root / "specs" / "small.toml").write_text(SMALL, encoding="utf-8")
    (root / "specs" / "other.toml").write_text(OTHER, encoding="utf-8")
    return Lab(root)
