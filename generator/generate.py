"""One run of the generator: spec files + templates + ledger -> generated/ and schema/."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ..ledger import read_records
from ..specs import Family, SpecFile, Workspace, families, load_specs, schema_files
from .dispatch_module import dispatch_text
from .emit import Emission, drift, emit, write_files
from .environment import make_environment
from .lowering import NotGenerated
from .manifest import NAME, manifest_text
from .sources import GeneratedWorkload, generate_workloads


@dataclass(frozen=True)
class Generation:
    """Everything that a workspace's specs ask for, in memory."""

    workspace: Workspace
    specs: tuple[SpecFile, ...]
    workloads: tuple[GeneratedWorkload, ...]
    files: dict[str, str]
    """Text by path relative to the generated folder."""
    schemas: dict[str, str]
    """Text by path relative to the schema folder."""


def plan_generation(workspace: Workspace) -> Generation:
    """Read the specs and the ledger and render everything; writes nothing.

    Raises:
        SpecError: a broken spec file (all problems of all files).
        NotGenerated: a family without an op, and see `lowering`.
        ScheduleError: see `lowering`.
    """
    known = families(workspace)
    environment = make_environment(workspace, known)
    specs = tuple(load_specs(workspace))
    for name in dict.fromkeys(spec_file.spec.family for spec_file in specs):
        _require_op(known[name])
    workloads = [
        generated
        for spec_file in specs
        for generated in generate_workloads(environment, spec_file, known[spec_file.spec.family])
    ]
    records = read_records(ledger_folder(workspace))
    files = {
        source.path: source.text
        for generated in workloads
        for candidate in generated.candidates
        for source in candidate.sources
        if source.path
    }
    files["__init__.py"] = '"""Written by `kernwright generate`; see manifest.json."""\n'
    files["dispatch.py"] = dispatch_text(environment, workspace, workloads, records)
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sorted(files.items())}
    files[NAME] = manifest_text(digests, workloads)
    return Generation(workspace, specs, tuple(workloads), files, schema_files(workspace))


def _require_op(family: Family) -> None:
    """A dispatch module imports each family's op: without it the module would not even load."""
    if importlib.util.find_spec(family.op_module) is None:
        raise NotGenerated(
            f"family {family.name} has no op to dispatch to (no module {family.op_module}); its spec files "
            f"can be validated, not generated: take them out of this workspace, or write that module"
        )


def ledger_folder(workspace: Workspace) -> Path:
    """Where a workspace keeps its records."""
    return workspace.root / "ledger" / "records"


def write_generation(generation: Generation) -> Emission:
    """Bring the generated and schema folders up to date.

    Raises:
        ManifestInvalid: the generated folder's manifest is damaged.
    """
    emission = emit(generation.workspace.generated, generation.files)
    written = write_files(generation.workspace.schema, generation.schemas)
    return Emission(emission.written + written, emission.removed, emission.unchanged)


def check_generation(generation: Generation) -> str:
    """What `generate` would change, as a unified diff; empty if nothing drifted."""
    return drift(generation.workspace.generated, generation.files) + drift(
        generation.workspace.schema, generation.schemas
    )
