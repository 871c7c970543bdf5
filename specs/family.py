"""The known families, and where the parts of each are.

A family is a package with the modules `spec`, `lowering`, `op` and `evidence`. The built-in ones are the folders of
`families/`, with their kernels in `templates/<name>/`; adding one touches no list. Families of users are found by
entry point (group `kernwright.families`) or by `families = ["my_package.my_family"]` in `kernwright.toml`, and keep
their kernels in a folder `templates` of their own.
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

from .errors import Problem, SpecError
from .spec import Spec
from .workspace import PACKAGE_ROOT, Workspace

GROUP = "kernwright.families"
FAMILIES = PACKAGE_ROOT / "families"
"""Folder of the built-in families."""
EXPORTS = frozenset(
    {"communicator", "explain", "fingerprint", "local_communicator", "policy", "publish", "stats"}
)
EXPORTS |= {"torch_ops", "warm_up"}
"""Names that a dispatch module has of its own."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_BUILT_IN = f"{__name__.rsplit('.', 2)[0]}.families"


@dataclass(frozen=True, slots=True)
class Family:
    """Where a family's package and its templates are."""

    name: str
    package: str
    templates: Path

    @property
    def spec_module(self) -> str:
        """Has `SPEC`, the model of the family's spec files."""
        return f"{self.package}.spec"

    @property
    def lowering_module(self) -> str:
        """Maps a schedule to kernels, launch geometry and buffers."""
        return f"{self.package}.lowering"

    @property
    def op_module(self) -> str:
        """Has `Op`: the call, and what serves it without a kernel of ours."""
        return f"{self.package}.op"

    @property
    def evidence_module(self) -> str:
        """What it is verified and timed with; needed by those commands alone."""
        return f"{self.package}.evidence"


def families(workspace: Workspace) -> dict[str, Family]:
    """Find all families, by name: the built-in ones first, then those of users.

    Raises:
        SpecError: a family's package can't be found, or two families have one name.
    """
    folders = sorted(module.name for module in pkgutil.iter_modules([str(FAMILIES)]) if module.ispkg)
    found = {name: Family(name, f"{_BUILT_IN}.{name}", PACKAGE_ROOT / "templates" / name) for name in folders}
    packages = [(point.name, point.value) for point in sorted(entry_points(group=GROUP))]
    packages += [(package.rpartition(".")[2], package) for package in workspace.families]
    if workspace.families and str(workspace.root) not in sys.path:
        sys.path.append(str(workspace.root))  # a workspace may hold the packages of its own families
    for name, package in packages:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in {*EXPORTS, "dispatch"}:
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


def _external(name: str, package: str) -> Family:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        message = f'there is no package of this name for the family "{name}"; install it, or correct it.'
        raise _unusable(package, message)
    return Family(name, package, Path(next(iter(spec.submodule_search_locations))) / "templates")
