"""`python -m kernwright.generator.artifacts FOLDER`: compile the library into a bundle for another machine.

It holds every cubin, and PTX of the sm_70 builds, which newer hardware runs through its driver's compiler: so
that a machine whose NVRTC no longer serves sm_70 can still prove those kernels.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..compiler.artifact import Artifact
from ..compiler.bundle import write_bundle
from ..compiler.compile import Job, compile_all
from ..specs import find_workspace
from .build import builds
from .generate import plan_generation

PTX_ARCH = "sm_70"


def collect(folder: Path) -> list[Artifact]:
    """Compile everything and write the bundle; gives what it holds.

    Raises:
        Exception: the first source that didn't compile; then nothing is written.
    """
    jobs = [build.job for build in builds(plan_generation(find_workspace())) if build.candidate.symbols]
    jobs += [Job(job.source, job.file_name, job.arch, "ptx") for job in jobs if job.arch == PTX_ARCH]
    artifacts: list[Artifact] = []
    for result in compile_all(jobs, workers=os.cpu_count() or 1):
        if isinstance(result, Exception):
            raise result
        artifacts.append(result)
    write_bundle(folder, artifacts)
    return artifacts


if __name__ == "__main__":
    made = collect(Path(sys.argv[1]))
    print(
        f"{len(made)} artifacts, {sum(len(artifact.data) for artifact in made) / 1e6:.1f} MB, in {sys.argv[1]}"
    )
