// linear_all_reduce bf16-w5120-k4096-m4096to8191-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 4096, m = (4096, 8191), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): edf720a484da1e868217bd1f5d96f199d0b1646a2413450e807d773503f37f5c
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
