"""Spec files: models, reading with checks, the known families, JSON Schema for editors.

Importing this loads neither torch nor CuPy nor Jinja; tomlkit is loaded when a spec is written back.
"""

from ..table import default_lanes, legal_lanes
from .base import SHORT_DTYPE, Arch, DType, IntervalSpec, Model, ToleranceSpec
from .errors import Finding, Problem, SpecError
from .external import External
from .family import Family, families
from .reader import SpecFile, load_spec, load_specs
from .schema import UnknownFamily, schema_files, schema_text
from .shortform import Selector, ShortForm, ShortFormError, matching, parse, select
from .spec import CandidateSpec, ScheduleValues, Spec, WorkloadSpec
from .tiling import RowTiling
from .tree import TreeSpec
from .workspace import Workspace, find_workspace

__all__ = [
    "SHORT_DTYPE",
    "Arch",
    "CandidateSpec",
    "DType",
    "External",
    "Family",
    "Finding",
    "IntervalSpec",
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
    "ToleranceSpec",
    "TreeSpec",
    "UnknownFamily",
    "WorkloadSpec",
    "Workspace",
    "default_lanes",
    "families",
    "find_workspace",
    "legal_lanes",
    "load_spec",
    "load_specs",
    "matching",
    "parse",
    "schema_files",
    "schema_text",
    "select",
]
