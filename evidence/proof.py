"""Whether code of today is the code that a record measured, though its digest is another.

A generated folder as it was at the time holds the texts. Equal tokens, launches, contract and flags prove it; so
does equal machine code, where all but the tokens is equal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..compiler.cubin import kernel_code_digest, machine_code_digest, references_data, repair
from ..compiler.disassembly import reads_constant_bank
from ..compiler.nvrtc import FLAGS, compile_program
from ..compiler.toolchain import toolchain
from ..generator.identity import code_digest
from ..generator.sources import GeneratedWorkload, Source
from ..generator.tokens import token_digest

NAME = "manifest.json"
BARE_FLAGS = tuple(flag for flag in FLAGS if flag != "-lineinfo")
DATA_ADDRESSES = 4
"""Constant bank that holds the addresses of data at namespace scope."""


class FolderInvalid(ValueError):
    """The folder isn't one that `kernwright generate` wrote."""


@dataclass(frozen=True)
class Proof:
    """How today's code was shown to be the one that was measured."""

    kind: Literal["tokens", "machine_code"]
    code: str
    """Digest of today's code."""


@dataclass(frozen=True)
class Old:
    """The code that was measured, as the folder has it."""

    text: str
    """Empty where there was no kernel of ours."""
    arch: str


@dataclass
class OldFolder:
    """The sources of a generated folder by spec, workload and candidate."""

    folder: Path
    entries: Mapping[tuple[str, str, str], list[dict[str, Any]]]

    @classmethod
    def open(cls, folder: Path) -> OldFolder:
        """Read the folder's manifest.

        Raises:
            FolderInvalid: there is none, or it lists no sources.
        """
        try:
            listed = json.loads((folder / NAME).read_text(encoding="utf-8"))["sources"]
            entries: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
            for item in listed:
                entries.setdefault((item["spec"], item["workload"], item["candidate"]), []).append(item)
                _ = item["arch"], item["source"], item["source_sha256"], item["code"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FolderInvalid(
                f"{folder / NAME} lists no sources ({error}); name a `generated` folder as it was when records "
                "were measured, such as that of `git worktree add ../then COMMIT`"
            ) from None
        return cls(folder, entries)

    def find(self, place: tuple[str, str, str], code: str) -> Old | str:
        """The code of a digest that a record measured; a sentence where it isn't here."""
        item = next((item for item in self.entries.get(place, []) if item["code"] == code), None)
        if item is None:
            return f"{self.folder} has no source of {place[2]} with digest {code[:12]}..., which was measured"
        if item["source"] is None:
            return Old("", item["arch"])
        try:
            data = (self.folder / item["source"]).read_bytes()
        except OSError as error:
            return f"can't read {self.folder / item['source']}: {error.strerror}"
        if hashlib.sha256(data).hexdigest() != item["source_sha256"]:
            return f"{self.folder / item['source']} isn't the text that its manifest lists"
        return Old(data.decode(), item["arch"])


@dataclass
class Prover:
    """Holds code that was measured against code of today; remembers what was compiled."""

    folder: OldFolder
    workloads: Mapping[tuple[str, str], GeneratedWorkload]
    """Today's, by spec and label."""
    _compiled: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def prove(self, spec: str, label: str, candidate: str, code: str, nvrtc: str) -> Proof | str:
        """A proof, or what is missing, in a sentence; `nvrtc` is a version, `12.9`."""
        old = self.folder.find((spec, label, candidate), code)
        if isinstance(old, str):
            return old
        workload = self.workloads.get((spec, label))
        made = next(
            (c for c in (workload.candidates if workload else ()) if c.candidate.name == candidate), None
        )
        source = next((s for s in (made.sources if made else ()) if s.arch == old.arch), None)
        if workload is None or made is None or source is None:
            return f"{candidate} of {spec}, {label}, isn't generated for {old.arch} any more"
        symbols, tokens = made.symbols, token_digest(old.text)
        if code_digest(workload.workload, made.candidate, made.lowering, symbols, tokens, old.arch) != code:
            return f"{candidate} changed in more than its tokens: in launches, contract or flags"
        if tokens == token_digest(source.text):
            return Proof("tokens", source.code)
        return self._by_machine_code(old, source, candidate, nvrtc)

    def _by_machine_code(self, old: Old, source: Source, candidate: str, nvrtc: str) -> Proof | str:
        installed = ".".join(map(str, toolchain().version))
        if not old.text or not source.text:
            return f"the tokens of {candidate} changed, and one of the two texts has no kernel to compile"
        if installed != nvrtc:
            return (
                f"the tokens of {candidate} changed, and machine code can't prove it: the record names NVRTC "
                f"{nvrtc}, installed is {installed}"
            )
        then, now = (self._machine_code(text, old.arch) for text in (old.text, source.text))
        if not _same_machine_code(then, now, old.arch):
            return f"the tokens of {candidate} changed, and so did its machine code for {old.arch}"
        return Proof("machine_code", source.code)

    def _machine_code(self, text: str, arch: str) -> bytes:
        """The cubin of a text without line information."""
        if (text, arch) not in self._compiled:
            made = compile_program(text, file_name="proof.cu", arch=arch, kind="cubin", flags=BARE_FLAGS)
            self._compiled[text, arch] = repair(made.data)
        return self._compiled[text, arch]


def _same_machine_code(then: bytes, now: bytes, arch: str) -> bool:
    """Whether two cubins run the same; data that no kernel reads may differ, if a disassembler can tell."""
    if machine_code_digest(then) == machine_code_digest(now):
        return True
    if kernel_code_digest(then) != kernel_code_digest(now) or references_data(then):
        return False
    return reads_constant_bank(then, arch, DATA_ADDRESSES) is False
