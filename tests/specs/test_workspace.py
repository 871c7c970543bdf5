"""Workspaces of users and families of theirs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kernwright.specs import SpecError, families, find_workspace, load_specs, schema_files
from kernwright.specs.family import spec_model
from kernwright.specs.workspace import PACKAGE_ROOT

FAMILY = """\
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from kernwright.specs import CandidateSpec, Finding, Spec, TreeSpec, WorkloadSpec
from kernwright.specs.base import Count


class Scale(WorkloadSpec):
    size: Count
    family: ClassVar[str] = "{name}"
    SHORT_FORM: ClassVar[dict[str, str]] = {{"k": "size"}}

    def fields(self) -> dict[str, Any]:
        return {{"dtype": self.dtype, "size": self.size, "world_size": self.world_size}}

    def trees(self) -> dict[str, TreeSpec]:
        return {{}}

    def problems(self) -> Iterator[Finding]:
        if self.size % 8:
            yield Finding(("size",), "size must be a multiple of 8.")


class Plain(CandidateSpec):
    route: Literal["plain"]


class ScaleSpec(Spec):
    family: Literal["{name}"]
    workload: Scale
    candidate: tuple[Plain, ...]


SPEC = ScaleSpec
"""

SPEC_FILE = """\
family = "{name}"
name = "tiny"
workload = {{ dtype = "float32", size = {size} }}
candidate = [{{ name = "plain", arch = ["sm_90"], route = "plain" }}]
"""


def workspace_with_family(root: Path, package: str, name: str, size: int) -> None:
    folder = root / package / name
    folder.mkdir(parents=True)
    for module in (root / package / "__init__.py", folder / "__init__.py"):
        module.write_text("", encoding="utf-8")
    (folder / "spec.py").write_text(FAMILY.format(name=name), encoding="utf-8")
    (root / "specs").mkdir()
    (root / "specs" / "tiny.toml").write_text(SPEC_FILE.format(name=name, size=size), encoding="utf-8")
    (root / "kernwright.toml").write_text(f'families = ["{package}.{name}"]\n', encoding="utf-8")


@pytest.fixture(autouse=True)
def _same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_the_library_is_the_workspace_where_there_is_no_other(tmp_path: Path) -> None:
    found = find_workspace(tmp_path)
    assert (found.is_library, found.root) == (True, PACKAGE_ROOT)
    family = families(found)["hyper_connection"]
    assert family.templates == PACKAGE_ROOT / "templates" / "hyper_connection"
    assert family.spec_module == "kernwright.families.hyper_connection.spec"
    assert family.lowering_module == "kernwright.families.hyper_connection.lowering"
    assert family.op_module == "kernwright.families.hyper_connection.op"


def test_the_nearest_file_upwards_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "project" / "deep"
    inner.mkdir(parents=True)
    (tmp_path / "kernwright.toml").write_text("", encoding="utf-8")
    assert find_workspace(inner).root == tmp_path
    text = 'specs = "shapes"\ntemplates = "looks"\ngenerated = "out/kernels"\n'
    (tmp_path / "project" / "kernwright.toml").write_text(text, encoding="utf-8")
    (tmp_path / "project" / "looks").mkdir()
    root = tmp_path / "project"
    monkeypatch.chdir(inner)
    found = find_workspace()
    assert (found.root, found.specs, found.templates) == (root, root / "shapes", root / "looks")
    assert (found.generated, found.schema, found.is_library) == (root / "out/kernels", root / "schema", False)
    assert find_workspace(tmp_path).templates is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('specs = "../elsewhere"', ':1: specs: "../elsewhere" isn\'t a folder inside the workspace;'),
        ('generated = "/tmp"', ':1: generated: "/tmp" isn\'t a folder inside the workspace;'),
        ('generated = "."', ':1: generated: "." isn\'t a folder inside the workspace;'),
        (
            'spec = "x"',
            ':1: spec: "spec" is unknown here; allowed are families, generated, specs and templates;',
        ),
        ('families = ["a-b"]', ':1: families[0]: found "a-b"; allowed are dotted names of Python packages'),
        ("specs = 3", ":1: specs: found 3; allowed is a text in quotes."),
        ("specs", ":1: this isn't TOML"),
    ],
)
def test_a_broken_workspace_file_is_a_sentence(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "kernwright.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        find_workspace(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'kernwright.toml'}{message}")


def test_a_family_of_a_user_works_like_a_built_in_one(tmp_path: Path) -> None:
    workspace_with_family(tmp_path, "acme_kernels", "acme_scale", 64)
    workspace = find_workspace(tmp_path)
    (file,) = load_specs(workspace)
    assert [workload.label() for workload in file.spec.workloads()] == ["fp32-k64"]
    found = families(workspace)["acme_scale"]
    assert found.templates == tmp_path / "acme_kernels" / "acme_scale" / "templates"
    assert found.lowering_module == "acme_kernels.acme_scale.lowering"
    built_in = {"all_reduce.json", "hyper_connection.json", "linear_all_reduce.json"}
    assert set(schema_files(workspace)) == built_in | {"acme_scale.json"}


def test_rules_of_a_users_family_are_reported_with_their_line(tmp_path: Path) -> None:
    workspace_with_family(tmp_path, "beta_kernels", "beta_scale", 63)
    with pytest.raises(SpecError) as caught:
        load_specs(find_workspace(tmp_path))
    path = tmp_path / "specs" / "tiny.toml"
    assert str(caught.value) == f"{path}:3: workload.size: size must be a multiple of 8."


def test_families_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "kernwright.toml").write_text('families = ["absent.family"]', encoding="utf-8")
    with pytest.raises(
        SpecError, match=r'absent\.family: there is no package of this name for the family "family"'
    ):
        families(find_workspace(tmp_path))
    workspace_with_family(tmp_path / "a", "gamma_kernels", "hyper_connection", 64)
    with pytest.raises(SpecError, match='the family "hyper_connection" has the name of another family'):
        families(find_workspace(tmp_path / "a"))
    workspace_with_family(tmp_path / "b", "delta_kernels", "delta_scale", 64)
    (tmp_path / "b/delta_kernels/delta_scale/spec.py").write_text("SPEC = 3", encoding="utf-8")
    workspace = find_workspace(tmp_path / "b")
    with pytest.raises(SpecError, match="must define SPEC, a model that derives from Spec"):
        spec_model(families(workspace)["delta_scale"])
