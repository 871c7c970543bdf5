"""Writing values back into a spec file; comments, order and spelling of everything else stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import write_whole
from .reader import SpecFile, check_document
from .toml import parse_document, read_document
from .workspace import Workspace, find_workspace


def put(
    path: Path,
    name: str,
    where: Mapping[str, object],
    values: Mapping[str, object],
    workspace: Workspace | None = None,
) -> SpecFile:
    """Set values in the table of a list that has the values of `where`, or append one, and write the file.

    Args:
        path: the spec file.
        name: the list's key, as in `[[threshold]]`.
        where: what the table must have, a list of one value being that value; it gets these if it is new.
        values: plain TOML data; None takes a key away.
        workspace: where the families are looked up; that of the file's folder if it isn't given.

    Raises:
        SpecError: the file is broken or would be; it is unchanged.
    """
    import tomlkit  # loaded only to write

    document = tomlkit.parse(read_document(path).text)
    entries = document.setdefault(name, tomlkit.aot())
    found = [e for e in entries if all(_plain(e.get(key)) == value for key, value in where.items())]
    if not found:
        table = tomlkit.table()
        table.update(dict(where))
        entries.append(table)
        found = [table]
    for key, value in values.items():
        if value is not None:
            found[0][key] = value
        elif key in found[0]:
            del found[0][key]
    changed = tomlkit.dumps(document)
    spec = check_document(parse_document(path, changed), path, workspace or find_workspace(path.parent))
    write_whole(path, changed.encode(), mode=path.stat().st_mode & 0o777)
    return SpecFile(path, spec)


def _plain(value: Any) -> Any:
    """A value as data; a list of one is that one."""
    plain = value.unwrap() if hasattr(value, "unwrap") else value
    return plain[0] if isinstance(plain, list) and len(plain) == 1 else plain
