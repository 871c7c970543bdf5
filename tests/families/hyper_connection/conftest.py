"""Boundaries of the library and of small, odd shapes."""

from harness.boundaries import library, odd  # noqa: F401  (fixtures)
from harness.settings import fresh_settings  # noqa: F401  (a fixture)
