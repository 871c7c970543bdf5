// linear_all_reduce bf16-w5120-k4096-m8192to16384-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 4096, m = (8192, 16384), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 7e8ada168631731cf428bc10f8e1841862500d661a08e36a7cf10678160acc0c
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
