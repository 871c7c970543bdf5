"""A row-parallel linear whose all-reduce runs beside its GEMM, slice by slice."""
