"""JSON Schema of the spec files, for editors: completion and checks while typing.

A schema says what one file may look like; rules that reach over several keys are checked by the reader.
"""

from __future__ import annotations

import json
from typing import Any

from .errors import listing, nearest
from .family import Family, families, spec_model
from .workspace import Workspace

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class UnknownFamily(ValueError):
    """A family that is neither built in nor named by the workspace."""


def json_schema(family: Family) -> dict[str, Any]:
    """Give the schema of a family's spec files; the same for the same version of Pydantic."""
    schema = spec_model(family).model_json_schema(by_alias=True)
    return {"$schema": DIALECT, **_for_toml(schema), "title": f"kernwright spec, family {family.name}"}


def _for_toml(node: Any) -> Any:
    """Drop what TOML can't say or editors can't use: null, defaults that are tables, titles from names."""
    if isinstance(node, list):
        return [_for_toml(part) for part in node if part != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, part in node.items():
        if key in ("properties", "$defs"):
            kept[key] = {name: _for_toml(schema) for name, schema in part.items()}
        elif key != "title" and not (key == "default" and (part is None or isinstance(part, dict))):
            kept[key] = _for_toml(part)
    if len(kept.get("anyOf", ())) == 1:
        kept |= kept.pop("anyOf")[0]
    return kept


def schema_files(workspace: Workspace) -> dict[str, str]:
    """Give the text of every schema file of a workspace by its file name, `<family>.json`."""
    return {
        f"{name}.json": json.dumps(json_schema(family), indent=2, sort_keys=True) + "\n"
        for name, family in families(workspace).items()
    }


def schema_text(workspace: Workspace, family: str) -> str:
    """Give the text of one family's schema.

    Raises:
        UnknownFamily: there is no such family.
    """
    files = schema_files(workspace)
    if f"{family}.json" not in files:
        names = sorted(families(workspace))
        raise UnknownFamily(
            f'there is no family "{family}"; there are {listing(names)}{nearest(family, names)}'
        )
    return files[f"{family}.json"]
