"""Arithmetic of the array oracles: the operations that docs/numerics.md allows, bit for bit, in NumPy or CuPy.

- `fma`, `dtypes`, `single`, `trees`, `functions`: what the contract is made of;
- `philox`: seeded bits, the same on every machine;
- `closeness`: how near a result is to FP64, for candidates under a tolerance.

The oracle of a family is in the family's own folder.
"""
