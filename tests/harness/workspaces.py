"""Workspaces of tests: spec files copied to a folder, and what the generator makes of them."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

from kernwright.generator import plan_generation, write_generation
from kernwright.generator.environment import make_environment
from kernwright.generator.sources import GeneratedWorkload, generate_workloads
from kernwright.specs import SpecFile, find_workspace, load_spec
from kernwright.specs import families as known_families


def generated_workspace(root: Path, specs: Path) -> Path:
    """A new workspace at `root`: the spec files of a folder, and what is generated from them."""
    shutil.copytree(specs, root / "specs")
    (root / "kernwright.toml").write_text("", encoding="utf-8")
    write_generation(plan_generation(find_workspace(root)))
    return root


def generated_workloads(path: Path, family: str) -> tuple[SpecFile, list[GeneratedWorkload]]:
    """A spec file, and its workloads with their sources; nothing is written."""
    workspace = find_workspace()
    known = known_families(workspace)
    file = load_spec(path, workspace)
    return file, list(generate_workloads(make_environment(workspace, known), file, known[family]))


def load_module(name: str, path: Path) -> ModuleType:
    """Import a Python file under a name of its own; dataclasses and pickles find it in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
