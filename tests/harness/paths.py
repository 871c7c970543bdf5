"""Where the checkout, the library and the spec files of the tests are."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CHECKOUT = TESTS.parent
LIBRARY = CHECKOUT / "specs" / "library"
ODD = TESTS / "families" / "hyper_connection" / "odd"
"""A workspace of small boundaries that take the templates' rarer branches."""
MINIATURE = TESTS / "families" / "all_reduce" / "miniature"
"""The spec file of a small all-reduce: three dtypes on two, four and eight ranks."""
