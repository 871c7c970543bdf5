"""`kernwright init`: a new workspace outside of this package."""

from __future__ import annotations

from pathlib import Path

from ..specs.workspace import FILE, PACKAGE_ROOT

EXAMPLE = PACKAGE_ROOT / "specs" / "library" / "hc8_h2048_r128_tp1.toml"

CONFIGURATION = """\
# A kernwright workspace. Paths are relative to this file and stay below it.
specs     = "specs"        # spec files: one workload each, with its candidates
templates = "templates"    # templates of your own; they win over the shipped ones of the same name
generated = "generated"    # output of `kernwright generate`; import generated/dispatch.py from here

# Families of your own: packages with modules spec, lowering, op and evidence, and a folder templates.
families = []
"""


class WorkspaceExists(Exception):
    """The folder holds a workspace already."""


def lay_out_workspace(folder: Path) -> list[Path]:
    """Write the configuration and a first spec file; gives the paths written.

    Raises:
        WorkspaceExists: one of the files is there already; then nothing is written.
    """
    example = EXAMPLE.read_text(encoding="utf-8").replace("../../schema/", "../schema/")
    files = {folder / FILE: CONFIGURATION, folder / "specs" / EXAMPLE.name: example}
    for path in files:
        if path.exists():
            raise WorkspaceExists(
                f"{path} exists already; nothing was written: name a new folder, or edit that file"
            )
    for path in (folder, folder / "specs", folder / "templates"):
        if path.exists() and not path.is_dir():
            raise WorkspaceExists(f"{path} is a file, not a folder; nothing was written: name a new folder")
    (folder / "templates").mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)
