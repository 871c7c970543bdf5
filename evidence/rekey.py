"""`kernwright ledger rekey`: records get today's digest of their code where it is proven to be what they measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ..generator import Generation, ledger_folder
from ..generator.records import current_sources
from ..ledger import Record, RecordFile, Rekeyed, read_records, replace_record, usable
from ..ledger.record import rekeyed
from ..ledger.stale import Sources, source_of
from ..specs import ToleranceSpec
from .proof import Digests, OldFolder, Prover

ProofOutcome = Literal["current", "tokens", "machine_code", "stale"]


@dataclass(frozen=True)
class Rekeying:
    file: str
    outcome: ProofOutcome
    """`current` where its digests are today's already; else how it was proven, or `stale`."""
    reason: str = ""
    """Why there is no proof; empty where there is one."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def rekey(generation: Generation, folder: Path, on_done: Callable[[], None] = lambda: None) -> list[Rekeying]:
    """Prove and rewrite the records of a workspace, one by one; each is whole whenever this is interrupted.

    A record without a proof stays as it is, and is stale. Where the candidate is proven and its control isn't, the
    record is rewritten and its time is stale, but not its exactness. `folder` is a generated folder of that time.

    Raises:
        FolderInvalid: the folder has no manifest with sources.
        SpecError: a record that contradicts itself.
        LedgerRefused: a record can't be written.
        ToolchainMissing, ArchUnsupported: tokens changed and nothing can be compiled here.
    """
    workloads = {(entry.spec, entry.workload.label()): entry for entry in generation.workloads}
    prover = Prover(OldFolder.open(folder), workloads)
    current, records = current_sources(generation.workloads), ledger_folder(generation.workspace)
    found = []
    for file in usable(read_records(records)):
        found.append(_rekey(prover, current, records, file))
        on_done()
    return found


def _rekey(prover: Prover, current: Sources, records: Path, file: RecordFile) -> Rekeying:
    record, proofs = file.record, []
    codes = {"candidate": record.code_sha256, "control": record.control_code_sha256}
    reasons = {}
    sides: list[tuple[Literal["candidate", "control"], str, Digests]] = [
        ("candidate", record.candidate, Digests(record.code_sha256, record.source_sha256)),
        ("control", record.control, Digests(record.control_code_sha256, record.control_source_sha256)),
    ]
    for of, name, digests in sides:
        today = source_of(record, name, current)
        if digests.code is not None and digests.code == today:
            continue
        if today is None and of == "control":
            continue  # a callable, or a kernel of a team's own
        proof = prover.prove(
            record.spec, record.workload, name, digests, record.device.arch, record.toolkit.nvrtc
        )
        if isinstance(proof, str):
            reasons[of] = proof
            continue
        codes[of] = proof.code
        old = digests.code or digests.text
        assert old is not None, "what was found in a folder has a digest"
        proofs.append(Rekeyed(of=of, proof=proof.kind, old_sha256=old))
    reasons.setdefault("candidate", _bounds_changed(prover, record))
    code = codes["candidate"]
    if reasons["candidate"] or code is None:
        return Rekeying(file.name, "stale", reasons["candidate"])
    if proofs:
        replace_record(records, file.name, rekeyed(record, code, codes["control"], tuple(proofs)))
    if "control" in reasons:
        return Rekeying(file.name, "stale", reasons["control"])
    kinds = {proof.proof for proof in proofs}
    return Rekeying(
        file.name, "machine_code" if "machine_code" in kinds else "tokens" if kinds else "current"
    )


def _bounds_changed(prover: Prover, record: Record) -> str:
    """Whether a record of before digests of code was held against other bounds than today's, in words."""
    near = record.exactness.closeness
    workload = prover.workloads.get((record.spec, record.workload))
    if near is None or workload is None or record.code_sha256 is not None:
        return ""
    bounds: dict[str, ToleranceSpec | None] = {
        made.candidate.name: made.candidate.tolerance for made in workload.candidates
    }
    today = bounds.get(record.candidate)
    if today == near.tolerance:
        return ""
    return f"{record.candidate} was held against {near.bounds}, and its tolerance is another today"
