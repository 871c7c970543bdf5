// Appended to the preludes: the sums of ROWS rows over a warp, at once and by a butterfly of each row.

extern "C" __global__ void at_once(const float* values, float* sums) {
  const int lane = threadIdx.x;
  float sum[ROWS];
  for (int row = 0; row < ROWS; ++row) sum[row] = values[row * 32 + lane];
  warp_sums<ROWS>(sum, lane);
  if (row_of(lane) < ROWS) sums[row_of(lane)] = sum[0];
}

extern "C" __global__ void one_by_one(const float* values, float* sums) {
  for (int row = 0; row < ROWS; ++row) {
    const float sum = butterfly_sum<32>(values[row * 32 + threadIdx.x]);
    if (threadIdx.x == 0) sums[row] = sum;
  }
}
