// Asynchronous copies: two stages of cp.async, and bulk copies that an mbarrier counts.
#include <cstdint>

namespace emulated = kernwright::emulator;

constexpr int TILE = 64;

extern "C" __global__ void staged_sum(const float* __restrict__ input, float* __restrict__ output, int tiles) {
  __shared__ __align__(16) float stage[2][TILE];
  const int thread = threadIdx.x;  // 16 threads, 16 bytes each
  emulated::cp_async(&stage[0][thread * 4], input + thread * 4, 16);
  emulated::cp_async_commit_group();
  float sum = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) emulated::cp_async(&stage[(tile + 1) % 2][thread * 4], input + (tile + 1) * TILE + thread * 4, 16);
    emulated::cp_async_commit_group();
    emulated::cp_async_wait_group(1);
    __syncthreads();
    for (int i = 0; i < 4; ++i) sum = sum + stage[tile % 2][(thread * 4 + i + 7) % TILE];
    __syncthreads();  // the stage is filled again
  }
  output[thread] = sum;
}

extern "C" __global__ void bulk_sum(const float* __restrict__ input, float* __restrict__ output, int tiles) {
  __shared__ __align__(128) float stage[2][TILE];
  __shared__ __align__(8) std::uint64_t full[2], empty[2];
  __shared__ __align__(16) float result[32];
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      emulated::mbarrier_initialise(&full[s], 1);
      emulated::mbarrier_initialise(&empty[s], 32);
    }
  }
  __syncthreads();
  if (threadIdx.x >= 32) {  // the producer warp
    if (threadIdx.x == 32)
      for (int tile = 0; tile < tiles; ++tile) {
        const int s = tile % 2;
        if (tile >= 2) emulated::mbarrier_wait_parity(&empty[s], (tile / 2 - 1) % 2);  // free again
        emulated::mbarrier_arrive_expect_tx(&full[s], TILE * sizeof(float));
        emulated::cp_async_bulk_to_shared(stage[s], input + tile * TILE, TILE * sizeof(float), &full[s]);
      }
    return;
  }
  float sum = 0.0f;
  for (int tile = 0; tile < tiles; ++tile) {
    const int s = tile % 2;
    while (!emulated::mbarrier_try_wait_parity(&full[s], tile / 2 % 2)) {  // arrived
    }
    sum = sum + stage[s][threadIdx.x] + stage[s][threadIdx.x + 32];
    emulated::mbarrier_arrive_one(&empty[s]);
  }
  result[threadIdx.x] = sum;
  __syncwarp();
  if (threadIdx.x == 0) {
    emulated::cp_async_bulk_to_global(output, result, sizeof result);
    emulated::cp_async_bulk_commit_group();
    emulated::cp_async_bulk_wait_group(0);  // before the CTA ends
  }
}
