"""Specs + templates + ledger -> `generated/`; and compiling that within each candidate's budget."""

from .build import (
    BuildReport,
    NothingSelected,
    SchedulerMissing,
    builds,
    compile_builds,
    remote_executor,
)
from .environment import TemplateBroken
from .generate import Generation, check_generation, ledger_folder, plan_generation, write_generation
from .lowering import Lowering, NotGenerated, ScheduleError

__all__ = [
    "BuildReport",
    "Generation",
    "Lowering",
    "NotGenerated",
    "NothingSelected",
    "ScheduleError",
    "SchedulerMissing",
    "TemplateBroken",
    "builds",
    "check_generation",
    "compile_builds",
    "ledger_folder",
    "plan_generation",
    "remote_executor",
    "write_generation",
]
