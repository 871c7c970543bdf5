// linear_all_reduce bf16-w5120-k4096-m2048to4095-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 4096, m = (2048, 4095), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 3f1ae55429137538dbd3a2a591b5ef74e0db1af46537256dba6ad3a06f61efe6
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
