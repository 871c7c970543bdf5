// linear_all_reduce bf16-w5120-k12800-m2048to4095-tp2, candidate nccl_4 (route sliced_nccl), sm_90
// workload: dtype = bfloat16, width = 5120, k = 12800, m = (2048, 4095), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch, slices = [1, 1, 1, 1], align = 1, min_m = 2048, free_sms = 0
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 44b75ff80796e17174a5f59fc900f5aad06e278187e4894505f951f985f5d528
//
// Slices of rows: the group's all-reduce of one runs beside the GEMM of the next.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
