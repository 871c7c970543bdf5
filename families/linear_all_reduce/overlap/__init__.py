"""The execution of a row-parallel linear with its all-reduce: rows in slices, streams, GEMMs, reductions.

- `rows`: a schedule as the dispatch table states it, and the slices that it cuts M rows into;
- `pipeline`: the order of events, whatever the streams and reductions are;
- `lanes`, `scratch`: streams, events and memory that outlive a call;
- `gemm`, `quantise`, `reductions`, `kernels`: what is enqueued;
- `group`: a layer group; `operator`: one as an opaque torch operator knows it; `install`: routing a model's layers.
"""
