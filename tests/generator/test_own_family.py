"""A family of a team's own, in its own workspace: adding it touches nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SPEC = """
from collections.abc import Iterator
from typing import ClassVar, Literal

from kernwright.specs import CandidateSpec, ScheduleValues, Spec, TreeSpec, WorkloadSpec
from kernwright.specs.base import Count
from kernwright.specs.errors import Finding


class Scale(WorkloadSpec):
    size: Count
    family: ClassVar[str] = "scale"
    SHORT_FORM: ClassVar[dict[str, str]] = {"e": "size"}

    def fields(self) -> dict[str, str | int]:
        return {"dtype": self.dtype, "size": self.size}

    def trees(self) -> dict[str, TreeSpec]:
        return {}

    def problems(self) -> Iterator[Finding]:
        if self.size % 32:
            yield Finding(("size",), f"size is {self.size}; it must be a multiple of 32.")


class Flat(CandidateSpec):
    route: Literal["flat"]
    threads: Count = 128
    KERNELS: ClassVar[tuple[str, ...]] = ("scale",)

    def schedule(self) -> ScheduleValues:
        return {"route": self.route, "threads": self.threads}


class ScaleSpec(Spec):
    family: Literal["scale"]
    workload: Scale
    candidate: tuple[Flat, ...]


SPEC = ScaleSpec
"""

SCHEDULE = """
from kernwright.generator import Lowering
from kernwright.table import Launch


def lower(workload, candidate):
    ctas = -(-workload.size // candidate.threads)
    launch = Launch(grid=(ctas, 1, 1), block=(candidate.threads, 1, 1), args=("source", "target"))
    return Lowering(
        template="scale/flat.cu.j2",
        constants={"size": workload.size, "threads": candidate.threads},
        kernels={"scale": launch},
        steps={"scale": ("scale",)},
    )
"""

OP = """
from kernwright.runtime import Kind, Op


class Scale(Op):
    family = "scale"
    kinds = {"scale": Kind(inputs=("source",), outputs=("target",))}
    short_form = {"e": "size"}

    def fields(self, given, kind, options):
        return {"size": given["source"].numel()}

    def shapes(self, fields, kind):
        return {"source": (fields["size"],), "target": (fields["size"],)}

    def reference(self, fields, kind):
        return lambda source: source + source


OP = Scale
"""

TEMPLATE = """\
{% include "header.cuh.j2" %}

constexpr int SIZE = {{ size }}, THREADS = {{ threads }};

extern "C" __global__ void __launch_bounds__(THREADS)
{{ symbols["scale"] }}(const float* __restrict__ source, float* __restrict__ target) {
  const int i = blockIdx.x * THREADS + threadIdx.x;
  if (i < SIZE) target[i] = source[i] + source[i];
}
"""

TINY = """\
family = "scale"
name = "tiny"
workload = { dtype = "float32", size = 1000 }
[[candidate]]
name = "narrow"
arch = ["sm_80", "sm_90"]
route = "flat"
[[candidate]]
name = "wide"
arch = ["sm_90"]
route = "flat"
threads = 256
budget.scale = { spill_bytes = 0, stack_bytes = 0, shared_bytes = 0 }
"""

CALL = """
import sys, torch
from generated import dispatch
source = torch.arange(992, dtype=torch.float32)
assert torch.equal(dispatch.scale(source), 2 * source)
assert torch.equal(dispatch.torch_ops().scale(source), 2 * source)
assert torch.equal(torch.compile(dispatch.scale, backend="eager", fullgraph=True)(source), 2 * source)
print(dispatch.explain("scale", source))
print(dispatch.stats())
print(sorted(name for name in sys.modules if name.startswith("kernwright.") and "hyper" in name))
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    package = tmp_path / "team" / "scale"
    (package / "templates").mkdir(parents=True)
    (tmp_path / "specs").mkdir()
    files = {
        tmp_path / "kernwright.toml": 'families = ["team.scale"]\n',
        tmp_path / "team" / "__init__.py": "",
        package / "__init__.py": "",
        package / "spec.py": SPEC,
        package / "lowering.py": SCHEDULE,
        package / "op.py": OP,
        package / "templates" / "flat.cu.j2": TEMPLATE,
        tmp_path / "specs" / "tiny.toml": TINY.replace("1000", "992"),
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return tmp_path


def run(workspace: Path, *command: str) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join([str(workspace), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": search} if command[0] == "-c" else os.environ
    return subprocess.run(
        [sys.executable, *command],
        cwd=workspace,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_family_of_ones_own_is_built_explained_and_dispatched(workspace: Path) -> None:
    built = run(workspace, "-m", "kernwright", "build", "--json")
    assert (built.returncode, built.stderr) == (0, "")
    rows = json.loads(built.stdout)
    assert [(row["candidate"], row["kernel"], row["arch"]) for row in rows] == [
        ("narrow", "scale", "sm_80"),
        ("narrow", "scale", "sm_90"),
        ("wide", "scale", "sm_90"),
    ]
    assert {row["workload"] for row in rows} == {"tiny/fp32-e992"}
    schemas = {path.name for path in (workspace / "schema").iterdir()}
    built_in = {"all_reduce.json", "hyper_connection.json", "linear_all_reduce.json"}
    assert schemas == built_in | {"scale.json"}

    explained = run(workspace, "-m", "kernwright", "explain", "sm90-e992", "--kind", "scale")
    assert explained.returncode == 0, explained.stderr
    assert explained.stdout.splitlines()[:2] == [
        "fp32-e992, kind scale, on sm_90, policy measured: narrow (contract exact)",
        "  + fp32-e992 narrow: chosen: the control, unverified: no exactness record on sm_90 for this source",
    ]

    called = run(workspace, "-c", CALL)
    assert called.returncode == 0, called.stderr
    lines = called.stdout.splitlines()
    assert lines[0] == "fp32-e992, kind scale, on cpu, policy measured: reference (contract exact)"
    assert "  - fp32-e992 narrow: the device is cpu; this candidate is built for sm_80, sm_90" in lines
    assert lines[-1] == "[]"  # the built-in family isn't imported by this dispatch module


def test_the_rules_of_a_family_of_ones_own_hold(workspace: Path) -> None:
    (workspace / "specs" / "tiny.toml").write_text(TINY, encoding="utf-8")
    found = run(workspace, "-m", "kernwright", "validate")
    assert found.returncode == 2
    assert found.stderr.rstrip().endswith("size is 1000; it must be a multiple of 32.")
    assert not (workspace / "generated").exists()


def test_a_family_that_is_not_there_is_a_sentence(workspace: Path) -> None:
    (workspace / "kernwright.toml").write_text('families = ["team.scala"]\n', encoding="utf-8")
    found = run(workspace, "-m", "kernwright", "generate")
    assert found.returncode == 2
    assert 'there is no package of this name for the family "scala"' in found.stderr
    assert "Traceback" not in found.stderr


def test_a_family_without_an_op_is_not_generated(workspace: Path) -> None:
    """Its dispatch module could not be imported."""
    (workspace / "team" / "scale" / "op.py").unlink()
    assert run(workspace, "-m", "kernwright", "validate").returncode == 0
    found = run(workspace, "-m", "kernwright", "generate")
    assert (found.returncode, found.stdout) == (3, "")
    assert found.stderr == (
        "family scale has no op to dispatch to (no module team.scale.op); its spec files can be validated, "
        "not generated: take them out of this workspace, or write that module\n"
    )
    assert not (workspace / "generated").exists()
