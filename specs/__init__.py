"""Spec files: models, reading with checks, the known families, JSON Schema for editors.

Importing this loads neither torch nor CuPy nor Jinja; tomlkit is loaded when a spec is written back.
"""

from ..table import default_lanes, legal_lanes
from .base import SHORT_DTYPE, Arch, Model, ToleranceSpec
from .errors import Problem, SpecError
from .external import External
from .family import Family, families, spec_model
from .reader import SpecFile, load_spec, load_specs
from .schema import UnknownFamily, json_schema, schema_files, schema_text
from .shortform import Match, Selector, ShortForm, ShortFormError, matching, parse, select
from .spec import CandidateSpec, Spec, WorkloadSpec
from .tiling import RowTiling, TilingError, row_tiling
from .tree import TreeSpec
from .workspace import Workspace, find_workspace

__all__ = [
    "SHORT_DTYPE",
    "Arch",
    "CandidateSpec",
    "External",
    "Family",
    "Match",
    "Model",
    "Problem",
    "RowTiling",
    "Selector",
    "ShortForm",
    "ShortFormError",
    "Spec",
    "SpecError",
    "SpecFile",
    "TilingError",
    "ToleranceSpec",
    "TreeSpec",
    "UnknownFamily",
    "WorkloadSpec",
    "Workspace",
    "default_lanes",
    "families",
    "find_workspace",
    "json_schema",
    "legal_lanes",
    "load_spec",
    "load_specs",
    "matching",
    "parse",
    "row_tiling",
    "schema_files",
    "schema_text",
    "select",
    "spec_model",
]
