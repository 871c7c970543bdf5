"""`kernwright ledger rekey`: records get today's digest of their code where it is proven to be what they measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..generator import Generation, ledger_folder
from ..generator.records import current_sources
from ..ledger import RecordFile, Rekeyed, read_records, replace_record, usable
from ..ledger.record import rekeyed
from ..ledger.stale import Sources, source_of
from .proof import OldFolder, Prover

ProofOutcome = Literal["current", "tokens", "machine_code", "stale"]


@dataclass(frozen=True)
class Rekeying:
    file: str
    outcome: ProofOutcome
    """`current` where its digests are today's already; else how it was proven, or `stale`."""
    reason: str = ""
    """Why there is no proof; empty where there is one."""


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
    names: dict[Literal["candidate", "control"], str] = {
        "candidate": record.candidate,
        "control": record.control,
    }
    codes = {"candidate": record.code_sha256, "control": record.control_code_sha256}
    reasons: dict[str, str] = {}
    for of, name in names.items():
        code, today = codes[of], source_of(record, name, current)
        if code == today or (today is None and of == "control"):  # a callable, or a kernel of a team's own
            continue
        if code is None:
            reasons[of] = "it is from before records had digests of code; measure it again"
            continue
        proof = prover.prove(record.spec, record.workload, name, code, record.toolkit.nvrtc)
        if isinstance(proof, str):
            reasons[of] = proof
            continue
        codes[of] = proof.code
        proofs.append(Rekeyed(of=of, proof=proof.kind, old_sha256=code))
    code = codes["candidate"]
    if "candidate" in reasons or code is None:
        return Rekeying(file.name, "stale", reasons["candidate"])
    if proofs:
        replace_record(records, file.name, rekeyed(record, code, codes["control"], tuple(proofs)))
    if "control" in reasons:
        return Rekeying(file.name, "stale", reasons["control"])
    kinds = {proof.proof for proof in proofs}
    return Rekeying(
        file.name, "machine_code" if "machine_code" in kinds else "tokens" if kinds else "current"
    )
