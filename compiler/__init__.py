"""Compilation: NVRTC through CuPy, resources, the cubin cache, bundles.

Importing this package loads the standard library only; CuPy is loaded when something must be compiled.
"""

from .artifact import Artifact, ArtifactKind
from .bundle import Bundle, BundleInvalid, write_bundle
from .cache import Cache
from .compile import Job, compile_all, compile_source
from .cubin import CubinInvalid
from .disassembly import DisassemblyFailed, ExpectationsSkipped, instruction_counts, unmet
from .nvrtc import FLAGS, CompileFailed, ToolchainMismatch
from .resources import LogUnreadable, Resources, over_budget
from .toolchain import ArchUnsupported, ToolchainMissing, require_arch

__all__ = [
    "FLAGS",
    "ArchUnsupported",
    "Artifact",
    "ArtifactKind",
    "Bundle",
    "BundleInvalid",
    "Cache",
    "CompileFailed",
    "CubinInvalid",
    "DisassemblyFailed",
    "ExpectationsSkipped",
    "Job",
    "LogUnreadable",
    "Resources",
    "ToolchainMismatch",
    "ToolchainMissing",
    "compile_all",
    "compile_source",
    "instruction_counts",
    "over_budget",
    "require_arch",
    "unmet",
    "write_bundle",
]
