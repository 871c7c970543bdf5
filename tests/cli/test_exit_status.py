"""The errors that the command line knows by name are classes of the modules that it names."""

from __future__ import annotations

import importlib

import pytest
from kernwright import cli


@pytest.mark.parametrize("table", ["NOT_HERE", "CHECK_FAILED", "BAD_INPUT"])
def test_errors_known_by_name_exist(table: str) -> None:
    for module, names in getattr(cli, table).items():
        for name in names:
            assert issubclass(getattr(importlib.import_module(module), name), Exception), f"{module}.{name}"
