"""Which families there are, and where the parts of each stand.

A built-in family is found by its module in `specs/families/`; adding one touches no list. Families of users
are packages with modules `spec`, `schedule` and `reference` and a folder `templates`, found by entry point
(group `kernwright.families`) or by `families = ["my_package.my_family"]` in `kernwright.toml`.
"""

from __future__ import annotations

import importlib
import importlib.util
import keyword
import pkgutil
import re
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from . import families as built_in
from .errors import Problem, SpecError
from .spec import Spec
from .workspace import PACKAGE_ROOT, Workspace

GROUP = "kernwright.families"
RESERVED = frozenset({"dispatch", "explain", "policy", "stats", "warm_up"})
"""Names that a dispatch module has of its own."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PACKAGE = __name__.rsplit(".", 2)[0]


@dataclass(frozen=True, slots=True)
class Family:
    """The parts of a family: names of modules, and its templates' folder."""

    name: str
    spec_module: str
    """Has `SPEC`, the model of the family's spec files."""
    schedule_module: str
    """Maps a schedule to kernels and launch geometry."""
    reference_module: str
    """Computes the op without a kernel of ours."""
    evidence_module: str
    """What it is verified and timed with; needed by those commands alone."""
    templates: Path


def families(workspace: Workspace) -> dict[str, Family]:
    """Find all families, by name: the built-in ones first, then those of users.

    Raises:
        SpecError: a family's package can't be found, or two families have one name.
    """
    modules = sorted(module.name for module in pkgutil.iter_modules(built_in.__path__))
    found = {name: _built_in(name) for name in modules if not name.startswith("_")}
    packages = [(point.name, point.value) for point in sorted(entry_points(group=GROUP))]
    packages += [(package.rpartition(".")[2], package) for package in workspace.families]
    if workspace.families and str(workspace.root) not in sys.path:
        sys.path.append(str(workspace.root))  # a workspace may hold the packages of its own families
    for name, package in packages:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in RESERVED:
            message = (
                f'"{name}" can\'t be the name of a family; take [a-z0-9_]+ that is free in a dispatch module.'
            )
            raise _unusable(package, message)
        family = _external(name, package)
        if found.setdefault(name, family) != family:
            message = f'the family "{name}" has the name of another family; rename it.'
            raise _unusable(package, message)
    return found


def spec_model(family: Family) -> type[Spec]:
    """Load the model of a family's spec files.

    Raises:
        SpecError: there is no such module, or it has no `SPEC` that derives from `Spec`.
    """
    if importlib.util.find_spec(family.spec_module) is None:
        raise _unusable(family.spec_module, f'the family "{family.name}" lacks this module; add it.')
    model = getattr(importlib.import_module(family.spec_module), "SPEC", None)
    if not (isinstance(model, type) and issubclass(model, Spec)):
        raise _unusable(family.spec_module, "the module must define SPEC, a model that derives from Spec.")
    return model


def _unusable(place: str, message: str) -> SpecError:
    return SpecError([Problem(place, None, "", message)])


def _built_in(name: str) -> Family:
    return Family(
        name=name,
        spec_module=f"{_PACKAGE}.specs.families.{name}",
        schedule_module=f"{_PACKAGE}.generator.families.{name}",
        reference_module=f"{_PACKAGE}.runtime.reference.{name}",
        evidence_module=f"{_PACKAGE}.evidence.families.{name}",
        templates=PACKAGE_ROOT / "templates" / name,
    )


def _external(name: str, package: str) -> Family:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        message = f'there is no package of this name for the family "{name}"; install it, or correct it.'
        raise _unusable(package, message)
    return Family(
        name=name,
        spec_module=f"{package}.spec",
        schedule_module=f"{package}.schedule",
        reference_module=f"{package}.reference",
        evidence_module=f"{package}.evidence",
        templates=Path(next(iter(spec.submodule_search_locations))) / "templates",
    )
