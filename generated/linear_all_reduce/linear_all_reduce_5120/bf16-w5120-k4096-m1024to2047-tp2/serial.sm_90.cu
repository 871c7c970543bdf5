// linear_all_reduce bf16-w5120-k4096-m1024to2047-tp2, candidate serial (route serial), sm_90
// workload: dtype = bfloat16, width = 5120, k = 4096, m = (1024, 2047), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 65e304ff8430615621401a3daf27db0f63532d1d2e8a280b724b9c198ed73e5f
//
// The plain linear, then the group's own all-reduce.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
