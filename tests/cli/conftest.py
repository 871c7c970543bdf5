"""Running the command line in this process, and workspaces to run it in."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernwright
import pytest
from kernwright import cli

LIBRARY = Path(kernwright.__file__).parent / "specs" / "library"

SMALL = """\
family = "hyper_connection"
name = "small"

[workload]
dtype = "float16"
branches = 2
hidden = 64
low_rank = 32

[[candidate]]
name = "control"
arch = ["sm_70", "sm_90"]
route = "replicated"

[[candidate]]
name = "wide"
arch = ["sm_90"]
route = "replicated"
up_mix = { load_bytes = 16 }
"""


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _process_state(monkeypatch: pytest.MonkeyPatch, cubin_cache: Path) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("KERNWRIGHT_CACHE_DIR", str(cubin_cache))
    monkeypatch.delenv("KERNWRIGHT_POLICY", raising=False)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """`kernwright <arguments>` in a folder, by default in one without a workspace."""
    nowhere = tmp_path / "nowhere"
    nowhere.mkdir()

    def ran(*arguments: object, cwd: Path = nowhere) -> Ran:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["kernwright", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        code = exited.value.code
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return Ran(code if isinstance(code, int) else 0, out, err)

    return ran


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A workspace of one small spec."""
    root = tmp_path / "work"
    (root / "specs").mkdir(parents=True)
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    (root / "specs" / "small.toml").write_text(SMALL, encoding="utf-8")
    return root


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A workspace with the shipped specs, so that the checkout itself stays as it is."""
    root = tmp_path / "library"
    shutil.copytree(LIBRARY, root / "specs")
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    return root
