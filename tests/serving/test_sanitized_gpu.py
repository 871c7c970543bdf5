"""What `make sanitize` runs under compute-sanitizer: every candidate of small shapes, every kind.

Eager calls only: the allocator's cache is off then, so that every tensor lies alone, and captures need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernwright.evidence.explain import load_dispatch
from kernwright.specs import find_workspace

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def dispatch(odd_root: Path) -> Any:
    """The dispatch module of shapes that take the templates' rarer branches."""
    return load_dispatch(find_workspace(odd_root)).DISPATCH
