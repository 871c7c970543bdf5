"""How many layers a GPU test computes: a few by default, and a whole decoder's by `make gpu-test-long`."""

import pytest

FEW, WHOLE = 8, 96
DEPTHS = pytest.mark.parametrize("depth", [FEW, pytest.param(WHOLE, marks=pytest.mark.long)])
