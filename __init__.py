"""kernwright: write down a shape; get a CUDA kernel specialised to it, proven exact, then dispatched."""

from .version import VERSION as __version__  # noqa: N811

__all__ = ["__version__"]
