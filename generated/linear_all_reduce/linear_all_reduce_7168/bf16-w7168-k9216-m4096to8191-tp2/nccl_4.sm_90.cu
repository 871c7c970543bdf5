// linear_all_reduce bf16-w7168-k9216-m4096to8191-tp2, candidate nccl_4 (route sliced_nccl), sm_90
// workload: dtype = bfloat16, width = 7168, k = 9216, m = (4096, 8191), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch, slices = [1, 1, 1, 1], align = 1, min_m = 2048, free_sms = 0
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_7168.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): abe022f696072bc129c2db40c085a3bbe36bce79f0cc9496e3720ff26b982ba9
//
// Slices of rows: the group's all-reduce of one runs beside the GEMM of the next.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
