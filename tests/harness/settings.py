"""The environment's settings are read once a process; a test reads them anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kernwright.runtime import graph_launch, loader, policy, ranges


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of ours is set, and what was read before is forgotten."""
    names = (policy.POLICY_VARIABLE, policy.STRICT_VARIABLE, ranges.NVTX_VARIABLE, graph_launch.VARIABLE)
    for variable in names:
        monkeypatch.delenv(variable, raising=False)
    caches: tuple[Callable[[], None], ...] = (
        policy.default.cache_clear,
        policy.strict.cache_clear,
        ranges.enabled.cache_clear,
        graph_launch.enabled.cache_clear,
        loader.bundles.cache_clear,
    )
    for clear in caches:
        clear()
    yield
    for clear in caches:
        clear()
