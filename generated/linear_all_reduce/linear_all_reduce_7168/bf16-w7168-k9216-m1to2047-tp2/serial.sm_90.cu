// linear_all_reduce bf16-w7168-k9216-m1to2047-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 7168, k = 9216, m = (1, 2047), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_7168.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 67c2c6f468e9bca5fc06e2bc74fe5dc5befb678a151c5ca9f0a2d711429da36d
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
