"""Generated on the GPU machine itself: shapes and schedules that take the templates' rarer branches."""

from __future__ import annotations

import pytest
from kernwright.evidence.explain import load_dispatch
from kernwright.specs import find_workspace

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def dispatch(odd_root):
    return load_dispatch(find_workspace(odd_root)).DISPATCH
