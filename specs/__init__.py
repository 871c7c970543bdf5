"""What is asked for: spec files, checked; the families that there are; JSON Schema for editors.

Importing this loads neither torch nor CuPy nor Jinja; tomlkit is loaded when a spec is written back.
"""

from .base import DTYPE_BYTES, SHORT_DTYPE, Arch, DType, Interval, Model, Tolerance
from .errors import Finding, Problem, SpecError
from .external import External
from .family import Family, families, spec_model
from .limits import Budget
from .reader import SpecFile, load_spec, load_specs
from .schema import UnknownFamily, json_schema, schema_files, schema_text
from .shortform import Match, Selection, ShortForm, ShortFormError, matching, parse, select
from .spec import Candidate, Schedule, Spec, Workload, digest
from .tiling import RowTiling, TilingError, row_tiling
from .tree import Tree, default_lanes, legal_lanes
from .workspace import Workspace, find_workspace
from .writer import edit

__all__ = [
    "DTYPE_BYTES",
    "SHORT_DTYPE",
    "Arch",
    "Budget",
    "Candidate",
    "DType",
    "External",
    "Family",
    "Finding",
    "Interval",
    "Match",
    "Model",
    "Problem",
    "RowTiling",
    "Schedule",
    "Selection",
    "ShortForm",
    "ShortFormError",
    "Spec",
    "SpecError",
    "SpecFile",
    "TilingError",
    "Tolerance",
    "Tree",
    "UnknownFamily",
    "Workload",
    "Workspace",
    "default_lanes",
    "digest",
    "edit",
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
