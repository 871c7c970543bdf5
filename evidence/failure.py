"""What a failed comparison leaves behind: the inputs, both values, and the command that repeats it."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .family_evidence import Case

if TYPE_CHECKING:
    import torch


CASE = ("kind", "inputs", "seed", "at")
"""What of a case says which inputs it has."""


@dataclass(frozen=True)
class Failure:
    """A candidate that stored a wrong value."""

    workload: str
    candidate: str
    arch: str
    on: str
    problem: str
    """What is wrong: the first mismatch with both values and bits, or the fault."""
    case: Case

    @property
    def command(self) -> str:
        """What repeats it."""
        words = ["kernwright", "verify", self.workload, "--on", self.on, "--candidate", self.candidate]
        return shlex.join([*words, "--arch", self.arch, "--case", self.case.name])


def leave(folder: Path, failure: Failure, inputs: Mapping[str, torch.Tensor]) -> Path:
    """Write `failure.json` and the inputs' bits (`inputs.npz`, integers of the dtype's width).

    Returns:
        The folder of this failure, new for every call.
    """
    import numpy as np

    from .tensors import words

    stem = f"{failure.workload}-{failure.candidate}-{failure.arch}".replace("/", "-")
    place = _new_folder(folder, stem)
    bits = {name: words(tensor.cpu().contiguous()).numpy() for name, tensor in inputs.items()}
    np.savez(place / "inputs.npz", **bits)  # type: ignore[arg-type]  # names are the family's own
    case = {key: value for key, value in asdict(failure.case).items() if key in CASE and value is not None}
    document = {**asdict(failure), "case": case, "command": failure.command}
    (place / "failure.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return place


def _new_folder(folder: Path, stem: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        place = folder / f"{stem}-{number}"
        try:
            place.mkdir()
        except FileExistsError:  # an earlier failure, or one of another process just now
            continue
        return place
    raise AssertionError("numbers don't end")
