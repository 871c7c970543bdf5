"""Spec files: models, reading with checks, the known families, JSON Schema for editors.

Importing this loads neither torch nor CuPy nor Jinja; tomlkit is loaded when a spec is written back.
"""

from ..table import default_lanes, legal_lanes
from .base import DTYPE_BYTES, SHORT_DTYPE, Arch, DType, IntervalSpec, Model, ToleranceSpec
from .errors import Finding, Problem, SpecError
from .external import External
from .family import Family, families, spec_model
from .limits import Budget
from .reader import SpecFile, load_spec, load_specs
from .schema import UnknownFamily, json_schema, schema_files, schema_text
from .shortform import Match, Selector, ShortForm, ShortFormError, matching, parse, select
from .spec import CandidateSpec, ScheduleValues, Spec, WorkloadSpec
from .tiling import RowTiling, TilingError, row_tiling
from .tree import TreeSpec
from .workspace import Workspace, find_workspace

__all__ = [
    "DTYPE_BYTES",
    "SHORT_DTYPE",
    "Arch",
    "Budget",
    "CandidateSpec",
    "DType",
    "External",
    "Family",
    "Finding",
    "IntervalSpec",
    "Match",
    "Model",
    "Problem",
    "RowTiling",
    "ScheduleValues",
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
