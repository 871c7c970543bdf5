"""Where spec files, templates and output are: a folder with `kernwright.toml`, or the shipped library."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from .base import PACKAGE, Model
from .errors import Finding, SpecError, shown
from .messages import findings_of
from .toml import read_document

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
FILE = "kernwright.toml"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folders of a set of specs; all inside `root`."""

    root: Path
    specs: Path
    templates: Path | None
    """Templates that win over the shipped ones; None if there are none."""
    generated: Path
    schema: Path
    families: tuple[str, ...]
    """Packages of families that are found neither in the library nor by entry point."""
    is_library: bool
    """Whether this is the library that ships with the package."""


class WorkspaceFile(Model):
    """The keys of `kernwright.toml`."""

    specs: str = "specs"
    """Folder of the spec files."""
    templates: str = "templates"
    """Folder of templates that win over the shipped ones."""
    generated: str = "generated"
    """Folder of the output."""
    families: tuple[Annotated[str, Field(pattern=PACKAGE)], ...] = ()
    """Packages of families."""


def find_workspace(start: Path | None = None) -> Workspace:
    """Find the nearest `kernwright.toml` upwards from `start` or the current folder, else the library.

    Raises:
        SpecError: the file is broken, or a folder leaves the workspace.
    """
    folder = (start or Path.cwd()).resolve()
    for root in (folder, *folder.parents):
        if (root / FILE).is_file():
            return _read(root)
    return Workspace(
        root=PACKAGE_ROOT,
        specs=PACKAGE_ROOT / "specs" / "library",
        templates=PACKAGE_ROOT / "templates",
        generated=PACKAGE_ROOT / "generated",
        schema=PACKAGE_ROOT / "schema",
        families=(),
        is_library=True,
    )


def _read(root: Path) -> Workspace:
    path = root / FILE
    document = read_document(path, allow_empty=True)
    try:
        file = WorkspaceFile.model_validate(document.data)
    except ValidationError as error:
        raise SpecError(document.problems(findings_of(error, WorkspaceFile, document.data))) from None
    outside = list(_outside(root, file))
    if outside:
        raise SpecError(document.problems(outside))
    templates = root / file.templates
    return Workspace(
        root=root,
        specs=root / file.specs,
        templates=templates if templates.is_dir() else None,
        generated=root / file.generated,
        schema=root / "schema",
        families=file.families,
        is_library=False,
    )


def _outside(root: Path, file: WorkspaceFile) -> Iterator[Finding]:
    """Find folders that aren't inside the workspace: output is written and deleted there."""
    for key in ("specs", "templates", "generated"):
        value: str = getattr(file, key)
        inside = "\0" not in value and (root / value).resolve().is_relative_to(root)
        if not inside or (root / value).resolve() == root:
            message = (
                f"{shown(value)} isn't a folder inside the workspace; give a relative path below {root}."
            )
            yield Finding((key,), message)
    folders = {key: (root / getattr(file, key)).resolve() for key in ("specs", "templates", "generated")}
    for key, taken in {**folders, "schema": root / "schema", "ledger": root / "ledger"}.items():
        generated = folders["generated"]
        if key != "generated" and (taken.is_relative_to(generated) or generated.is_relative_to(taken)):
            message = (
                f"{shown(file.generated)} overlaps the folder of {key}; output needs a folder of its own."
            )
            yield Finding(("generated",), message)
