"""Writing a value back into a spec file; comments, order and spelling of everything else stay as they are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from .errors import Problem, SpecError, dotted, listing, nearest
from .reader import SpecFile, check_document
from .toml import parse_document, read_document
from .workspace import Workspace, find_workspace


def edit(path: Path, key_path: Sequence[str], value: object, workspace: Workspace | None = None) -> SpecFile:
    """Set one value of a spec file, or remove it with None, and write the file if it is still valid.

    Args:
        path: the spec file.
        key_path: keys from the outside in; a candidate goes by its name: `("candidate", "wide", "ctas")`.
            Tables that don't exist yet are made (`("candidate", "wide", "tiling", "ctas")`).
        value: plain TOML data: text, number, truth value, list or table.
        workspace: where the families are looked up; that of the file's folder if it isn't given.

    Raises:
        SpecError: the file is broken or would be, or a candidate or key isn't there; it is unchanged.
    """
    document = _parsed(path)
    table = _walk(document, path, key_path)
    key = key_path[-1]
    if value is not None:
        table[key] = _inline(value)
    elif key in table:
        del table[key]
    else:
        raise SpecError([Problem(str(path), None, dotted(key_path), "there is no such key to remove.")])
    return _written(document, path, workspace)


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
        workspace: as in `edit`.

    Raises:
        SpecError: the file is broken or would be; it is unchanged.
    """
    import tomlkit

    document = _parsed(path)
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
    return _written(document, path, workspace)


def _plain(value: Any) -> Any:
    """A value as data; a list of one is that one."""
    plain = value.unwrap() if hasattr(value, "unwrap") else value
    return plain[0] if isinstance(plain, list) and len(plain) == 1 else plain


def _parsed(path: Path) -> Any:
    import tomlkit  # loaded only to write

    return tomlkit.parse(read_document(path).text)


def _written(document: Any, path: Path, workspace: Workspace | None) -> SpecFile:
    """Write a document if it is a valid spec."""
    import tomlkit

    changed = tomlkit.dumps(document)
    checked = parse_document(path, changed)
    spec = check_document(checked, path, workspace or find_workspace(path.parent))
    _replace(path, changed)
    return SpecFile(path, spec)


def _inline(value: Any) -> Any:
    """A table that stays on its line: a plain dict would become a section at the end of the file."""
    import tomlkit

    if not isinstance(value, Mapping):
        return value
    table = tomlkit.inline_table()
    table.update({key: _inline(part) for key, part in value.items()})
    return table


def _walk(document: Any, path: Path, key_path: Sequence[str]) -> Any:
    """Go to the table that holds the last key, making inline tables on the way."""
    import tomlkit

    table = document
    for place, key in enumerate(key_path[:-1]):
        if isinstance(table, list):
            table = _by_name(table, path, key_path[: place + 1])
        elif isinstance(table, MutableMapping):
            if key not in table:
                table[key] = tomlkit.inline_table()
            table = table[key]
    if not isinstance(table, MutableMapping):
        message = f'"{dotted(key_path[:-1])}" is no table; give a key path that ends in a key of one.'
        raise SpecError([Problem(str(path), None, dotted(key_path), message)])
    return table


def _by_name(entries: Sequence[Any], path: Path, key_path: Sequence[str]) -> Any:
    named = {
        str(entry["name"]): entry
        for entry in entries
        if isinstance(entry, MutableMapping) and "name" in entry
    }
    wanted = key_path[-1]
    if wanted not in named:
        there = f"there are {listing(named)}" if named else "this list has no named tables"
        message = f'there is no entry "{wanted}"; {there}{nearest(wanted, named)}'
        raise SpecError([Problem(str(path), None, dotted(key_path), message)])
    return named[wanted]


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old text or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
