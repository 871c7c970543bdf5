"""Keys of compile caches: with the fingerprint in them, graphs are compiled anew when dispatch changes.

Correctness doesn't need it: operators are opaque, so a graph from a cache dispatches by today's table and
policy. A captured CUDA graph does fix a choice, and so does what was measured with one.
"""

from __future__ import annotations

from typing import Any


def tag_compile_caches(fingerprint: str) -> str:
    """Make a fingerprint part of the keys of all on-disk caches of `torch.compile` in this process.

    Args:
        fingerprint: as `dispatch.fingerprint()` gives it; one that was tagged before is replaced.

    Returns:
        The whole tag, which is `torch.compiler.config.cache_key_tag` now.

    Raises:
        RuntimeError: this torch has no such setting (2.7 has it).
    """
    import torch

    config: Any = getattr(torch.compiler, "config", None)
    if not hasattr(config, "cache_key_tag"):
        raise RuntimeError(
            f"torch {torch.__version__} has no torch.compiler.config.cache_key_tag; update torch, or give each "
            "dispatch.fingerprint() a TORCHINDUCTOR_CACHE_DIR of its own"
        )
    others = [part for part in config.cache_key_tag.split(",") if part and not part.startswith(_MARK)]
    config.cache_key_tag = ",".join([*others, _MARK + fingerprint])
    tag: str = config.cache_key_tag
    return tag


_MARK = "kernwright="
