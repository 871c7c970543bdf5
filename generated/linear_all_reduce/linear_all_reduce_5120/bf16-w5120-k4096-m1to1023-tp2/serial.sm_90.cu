// linear_all_reduce bf16-w5120-k4096-m1to1023-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 4096, m = (1, 1023), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 0ddf1fef70c11dfe5f11796bcb477f8bb1c2e42193055a6de0c29de7a2be8531
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
