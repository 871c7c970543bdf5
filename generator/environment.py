"""The one Jinja environment: strict about names, byte-exact about white space."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemLoader,
    PrefixLoader,
    StrictUndefined,
    TemplateNotFound,
)

from ..specs import Family, Workspace

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"


class TemplateBroken(ValueError):
    """A template, maybe one of a workspace's own, can't be rendered."""


def make_environment(workspace: Workspace, families: dict[str, Family]) -> Environment:
    """Build the environment that renders a workspace's kernels and its dispatch module.

    `<family>/...` is found in that family's folder and everything else in the shared templates; a workspace's own
    `templates/` folder is searched first, so that a team can replace any part.
    """
    own = [workspace.templates] if workspace.templates is not None else []
    by_family = {name: FileSystemLoader(family.templates) for name, family in families.items()}
    return Environment(
        loader=ChoiceLoader([FileSystemLoader([*own, TEMPLATES]), PrefixLoader(by_family)]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is CUDA and Python; spec values reach it only through typed fields
    )


def tidy(text: str) -> str:
    """Strip trailing blanks and fold runs of blank lines, which conditional blocks leave behind."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line or (lines and lines[-1]):
            lines.append(line)
    return "\n".join(lines).rstrip("\n") + "\n"


def render(environment: Environment, name: str, context: dict[str, Any]) -> str:
    """Render the template `name` to tidy text.

    Raises:
        TemplateBroken: there is no such template, it has a syntax error, or it uses a name that isn't given.
    """
    try:
        return tidy(environment.get_template(name).render(context))
    except Exception as error:  # whatever a template of a team's own does wrong, it is the template
        # Jinja rewrites the innermost frame to the template's own file and line.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}" if frame.filename.endswith(".j2") else f"template {name}"
        what = f"there is no template {error}" if isinstance(error, TemplateNotFound) else str(error)
        raise TemplateBroken(f"{place}: {what}; correct the template") from error
