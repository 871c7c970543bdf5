// linear_all_reduce bf16-w5120-k12800-m1to1023-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 12800, m = (1, 1023), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 4e39446caece49acd331601714513c5fffd6b53505965a991a0bc0e695a756c5
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
