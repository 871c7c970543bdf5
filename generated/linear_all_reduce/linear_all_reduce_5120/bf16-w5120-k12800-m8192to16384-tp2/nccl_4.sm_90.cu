// linear_all_reduce bf16-w5120-k12800-m8192to16384-tp2, candidate nccl_4 (route sliced_nccl), sm_90
// workload: dtype = bfloat16, width = 5120, k = 12800, m = (8192, 16384), world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch, slices = [1, 1, 1, 1], align = 1, min_m = 2048, free_sms = 0
// linear:
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
// Identity (workload, candidate, target): 6cedb545e3c837700dc6adf03e90acc77459a32ce0469f5fb8c097649a612872
//
// Slices of rows: the group's all-reduce of one runs beside the GEMM of the next.
// Libraries do all the work: this text states the schedule, and its digest is what records speak of.
