"""Settings of the runtime that are switched on and off by environment variables."""

from __future__ import annotations

import os

from .errors import InvalidSetting


def switch(variable: str, default: bool) -> bool:
    """Whether the environment variable is 1, by default `default`; InvalidSetting where it is neither 0 nor 1."""
    value = os.environ.get(variable) or str(int(default))
    if value not in ("0", "1"):
        raise InvalidSetting(f"{variable} is {value!r}; allowed are 0 and 1")
    return value == "1"
