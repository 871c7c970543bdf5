"""What a dispatch module would do, as one number: for keys of caches that hold graphs or compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..table import FORMAT, Table
from ..version import VERSION
from .policy import Policy


def fingerprint(
    table: Table,
    policy: Policy,
    strict: bool,
    states: Mapping[str, object] = MappingProxyType({}),
    compilers: tuple[str | None, ...] = (),
) -> str:
    """64 hexadecimal digits that change with anything that decides what a call runs.

    That is: specs, schedules, sources (by digest), records with their verdicts, the policy in force, strict mode, the
    version of the runtime, of the compilers of bundles and of the one installed (`compilers`), and what ops have
    installed in models (`states`, JSON-able, by family). The path of
    the table doesn't count, and neither does the device, which callers' keys have already.
    """
    import hashlib  # a millisecond or two that only those pay who ask

    # Dataclasses of plain values in the order of the generated module, which is deterministic.
    text = repr((VERSION, FORMAT, policy, strict, table.workloads, sorted(states.items()), compilers))
    return hashlib.sha256(text.encode()).hexdigest()
