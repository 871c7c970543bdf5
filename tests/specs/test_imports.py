"""Reading specs is quick to start: nothing heavy is loaded for it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from kernwright.specs import find_workspace, load_specs, schema_files
from kernwright.ledger import read_records
load_specs(find_workspace())
schema_files(find_workspace())
heavy = {"torch", "cupy", "cupy_backends", "numpy", "jinja2", "typer", "rich", "tomlkit"}
print(sorted(heavy & set(sys.modules)))
"""


def test_specs_and_ledger_load_nothing_heavy() -> None:
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
