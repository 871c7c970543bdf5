// linear_all_reduce bf16-w7168-k9216-m8192to16384-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 7168, k = 9216, m = (8192, 16384), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_7168.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 61d01122c9ef32e9e27fe24c14c0ef0d4e4fb014ab0108b384a30fcf11102efb
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
