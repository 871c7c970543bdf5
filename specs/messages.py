"""Pydantic's errors in the terms of a spec file: what was found, what is allowed, the nearest name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from .base import PATTERNS, Model
from .errors import Finding, KeyPath, RuleError, listing, nearest, shown


def findings_of(error: ValidationError, root: type[Model], data: Mapping[str, Any]) -> list[Finding]:
    """Translate all errors of validating `data` by the model `root`."""
    return [finding for detail in error.errors() for finding in _translate(detail, root, data)]


def unknown_family(found: object, families: Mapping[str, object]) -> str:
    """Say that a family doesn't exist, and which do."""
    known = listing(f'"{name}"' for name in families)
    ending = nearest(found, families) if isinstance(found, str) else "."
    return f"found {shown(found)}; the families are {known}{ending}"


def tagged(models: list[type[Model]]) -> dict[str, type[Model]]:
    """Give the models of a union by their `route`."""
    return {
        str(tag): model
        for model in models
        if "route" in model.model_fields
        for tag in get_args(model.model_fields["route"].annotation)
    }


def models_in(annotation: object) -> list[type[Model]]:
    """Find the models that an annotation is made of."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for part in get_args(annotation) for model in models_in(part)]


def keys_of(model: type[Model]) -> list[str]:
    """Give the keys of a table as they are written in a file."""
    return [field.alias or name for name, field in model.model_fields.items()]


def _translate(detail: ErrorDetails, root: type[Model], data: Mapping[str, Any]) -> Iterator[Finding]:
    kind, loc = detail["type"], detail["loc"]
    context = detail.get("ctx", {})
    path = _written_path(loc, data, keep_last=kind == "missing")
    if kind == "too_short" and len(detail["input"]) >= context["min_length"]:
        return  # Pydantic counts only the entries that are valid; the others have complaints of their own.
    if kind == "value_error" and isinstance(rule := context["error"], RuleError):
        yield from (Finding((*path, *finding.path), finding.message) for finding in rule.findings)
    elif kind == "value_error":
        yield Finding(path, str(context["error"]))
    elif kind == "missing":
        yield Finding(path, _missing(loc, root))
    elif kind == "extra_forbidden":
        yield Finding(path, _unknown(loc, root))
    elif kind == "union_tag_invalid":
        yield Finding((*path, "route"), _not_one_of(str(context["tag"]), context["expected_tags"]))
    elif kind == "union_tag_not_found":
        yield Finding((*path, "route"), f'"route" is missing; allowed are {listing(tagged(_at(loc, root)))}.')
    else:
        sentence = SENTENCES.get(kind)  # a user's family may raise others, which keep Pydantic's words
        yield Finding(path, sentence(detail["input"], context) if sentence else f"{detail['msg']}.")


def _wants(what: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda found, _: f"found {shown(found)}; allowed is {what}."


def _bound(words: str, key: str) -> Callable[[Any, Mapping[str, Any]], str]:
    return lambda found, context: f"found {shown(found)}; it must be {words} {context[key]:.10g}."


def _length(words: str, key: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def sentence(found: Any, context: Mapping[str, Any]) -> str:
        what = "characters" if isinstance(found, str) else "entries"
        return f"found {len(found)} {what}; there must be {words} {context[key]}."

    return sentence


def _pattern(found: Any, context: Mapping[str, Any]) -> str:
    pattern = context["pattern"]
    return f"found {shown(found)}; allowed are {PATTERNS.get(pattern, f'texts that match {pattern}')}."


def _not_one_of(found: object, expected: str) -> str:
    names = re.findall(r"'([^']*)'", expected)
    allowed = listing((f'"{name}"' for name in names), "or") if names else expected
    ending = nearest(found, names) if isinstance(found, str) else "."
    return f"found {shown(found)}; allowed are {allowed}{ending}"


_INTEGER = _wants("a whole number")
_LIST = _wants("a list")
_TABLE = _wants("a table")

SENTENCES: dict[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "int_type": _INTEGER,
    "int_from_float": _INTEGER,
    "int_parsing_size": lambda found, _: f"found {shown(found)}; that is too large.",
    "float_type": _wants("a number"),
    "finite_number": _wants("a finite number"),
    "bool_type": _wants("true or false"),
    "string_type": _wants("a text in quotes"),
    "tuple_type": _LIST,
    "dict_type": _TABLE,
    "model_type": _TABLE,
    "model_attributes_type": _TABLE,
    "greater_than": _bound("greater than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "too_short": _length("at least", "min_length"),
    "too_long": _length("at most", "max_length"),
    "string_too_short": _length("at least", "min_length"),
    "string_too_long": _length("at most", "max_length"),
    "string_pattern_mismatch": _pattern,
    "literal_error": lambda found, context: _not_one_of(found, context["expected"]),
}
"""A sentence for each type of error that our models can raise."""


def _missing(loc: tuple[int | str, ...], root: type[Model]) -> str:
    key = str(loc[-1])
    fields = [f for m in _at(loc[:-1], root) for n, f in m.model_fields.items() if key == (f.alias or n)]
    description = next((" " + f.description for f in fields if f.description), "")
    return f'"{key}" is missing; add it.{description}'


def _unknown(loc: tuple[int | str, ...], root: type[Model]) -> str:
    """Say which keys a table has; for a candidate's option also which routes have it."""
    key, models = str(loc[-1]), _at(loc[:-1], root)
    allowed = sorted({name for model in models for name in keys_of(model)} - {"every", "kernels"})
    routes = tagged(models)
    if len(routes) == 1:
        (route,) = routes
        having = [name for name, model in tagged(_at(loc[:-2], root)).items() if key in model.model_fields]
        if having:
            return f'route "{route}" has no option {shown(key)}; routes that have it: {listing(having)}.'
        has = f"it has {listing(allowed)}{nearest(key, allowed)}"
        return f'route "{route}" has no option {shown(key)}, and no other route has; {has}'
    return f"{shown(key)} is unknown here; allowed are {listing(allowed)}{nearest(key, allowed)}"


def _at(loc: tuple[int | str, ...], root: type[Model]) -> list[type[Model]]:
    """Find the models that may stand at a place of pydantic's; a union's tag is a part of such a place."""
    models: list[type[Model]] = [root]
    for part in loc:
        if isinstance(part, int):
            continue
        routes = tagged(models)
        if len(models) > 1 and part in routes:
            models = [routes[part]]
            continue
        fields = [f for m in models for n, f in m.model_fields.items() if part == (f.alias or n)]
        # A part that is no field is a key of a dict, whose values are what was found already.
        models = [model for f in fields for model in models_in(f.annotation)] if fields else models
    return models


def _written_path(loc: tuple[int | str, ...], data: Mapping[str, Any], *, keep_last: bool) -> KeyPath:
    """Give the key path as written: without tags and fields that only our models know."""
    path: KeyPath = ()
    here: object = data
    for place, part in enumerate(loc):
        if isinstance(here, dict) and part in here:
            path, here = (*path, part), here[part]
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path, here = (*path, part), cast("object", here[part])
        elif keep_last and place == len(loc) - 1:
            path = (*path, part)
    return path
