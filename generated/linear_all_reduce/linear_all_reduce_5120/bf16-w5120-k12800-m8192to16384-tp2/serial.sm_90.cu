// linear_all_reduce bf16-w5120-k12800-m8192to16384-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 12800, m = (8192, 16384), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 15d09aff54d1fc90fc22883e574025dd065fa8e7f52eaff8613da0f8df729d68
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
