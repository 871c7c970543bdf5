"""Which candidates may be dispatched: by argument, by context manager, or by environment.

- `measured` (default): candidates that a record on this kind of device admits, be it for what another compiler made
  of the same source, else the control;
- `verified`: also those that passed exactness for this very source;
- `control`: the control only;
- `reference`: torch only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Literal, cast, get_args

from .errors import InvalidSetting, not_allowed
from .settings import switch

Policy = Literal["measured", "verified", "control", "reference"]

POLICY_VARIABLE = "KERNWRIGHT_POLICY"
STRICT_VARIABLE = "KERNWRIGHT_STRICT"

_override: ContextVar[Policy | None] = ContextVar("kernwright_policy", default=None)

override = _override.get
"""The policy of the innermost `under` around the caller; None where there is none."""


def checked(name: str, origin: str = "policy") -> Policy:
    """`name` as a policy; ValueError where there is no such policy."""
    allowed = get_args(Policy)
    if name in allowed:
        return cast(Policy, name)
    raise ValueError(not_allowed(origin, name, allowed))


def current() -> Policy:
    """The policy in force where no argument says otherwise."""
    return _override.get() or default()


@contextmanager
def under(name: str) -> Iterator[None]:
    """Dispatch under policy `name` inside the block, in this thread or task only; ValueError for an unknown one."""
    token = _override.set(checked(name))
    try:
        yield
    finally:
        _override.reset(token)


@cache
def default() -> Policy:
    """The policy that `KERNWRIGHT_POLICY` names, else `measured`, read once; InvalidSetting for an unknown one."""
    try:
        return checked(os.environ.get(POLICY_VARIABLE) or "measured", POLICY_VARIABLE)
    except ValueError as error:
        raise InvalidSetting(str(error)) from error


@cache
def strict() -> bool:
    """Whether an unsupported call raises instead of falling back (`KERNWRIGHT_STRICT=1`); read once, by `switch`."""
    return switch(STRICT_VARIABLE, default=False)
