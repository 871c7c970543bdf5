"""docs/serving.md: its Python runs, from top to bottom, as one program."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness.paths import CHECKOUT

DOCUMENT = CHECKOUT / "docs" / "serving.md"


def test_the_documents_python_runs(python: Callable[..., str]) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == 6
    said = python("\n".join(blocks))
    assert re.fullmatch(r"[0-9a-f]{64}\n", said)
