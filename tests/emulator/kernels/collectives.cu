// Shuffles, votes and barriers, one kernel each; the tests know what every lane must get.

extern "C" __global__ void shuffles(const int* __restrict__ input, int* __restrict__ output, int argument, int width) {
  const int lane = threadIdx.x;
  const int value = input[lane];
  output[lane] = __shfl_sync(0xffffffffu, value, argument, width);
  output[32 + lane] = __shfl_up_sync(0xffffffffu, value, argument, width);
  output[64 + lane] = __shfl_down_sync(0xffffffffu, value, argument, width);
  output[96 + lane] = __shfl_xor_sync(0xffffffffu, value, argument, width);
}

extern "C" __global__ void votes(const int* __restrict__ input, unsigned* __restrict__ output) {
  const int lane = threadIdx.x;
  const int value = input[lane];
  int all = 0;
  // Odd and even lanes vote apart, at the same time.
  const unsigned mask = lane % 2 ? 0xaaaaaaaau : 0x55555555u;
  output[lane] = __ballot_sync(mask, value > 0);
  output[32 + lane] = __any_sync(mask, value > 5) + 2 * __all_sync(mask, value > -5);
  output[64 + lane] = __match_any_sync(0xffffffffu, value);
  output[96 + lane] = __match_all_sync(mask, lane % 2, &all) + all;
  output[128 + lane] = __reduce_add_sync(0xffffffffu, static_cast<unsigned>(value));
  output[160 + lane] = static_cast<unsigned>(__reduce_min_sync(0xffffffffu, value));
  output[192 + lane] = __reduce_max_sync(mask, static_cast<unsigned>(value));
  output[224 + lane] = __reduce_xor_sync(mask, static_cast<unsigned>(value));
}

extern "C" __global__ void counts(const int* __restrict__ input, int* __restrict__ output) {
  const int value = input[threadIdx.x];
  output[threadIdx.x] = __syncthreads_count(value > 0);
  output[blockDim.x + threadIdx.x] = __syncthreads_or(value > 100) + 2 * __syncthreads_and(value > -100);
}

// A producer warp and a consumer warp pass a word to and fro, through two named barriers.
extern "C" __global__ void named(int* __restrict__ output, int rounds) {
  __shared__ int word[32];
  const int lane = threadIdx.x % 32;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < 32) {
      word[lane] = 100 * round + lane;
      kernwright::emulator::barrier_arrive(1, 64);  // full
      kernwright::emulator::barrier_sync(2, 64);    // empty
    } else {
      kernwright::emulator::barrier_sync(1, 64);
      output[32 * round + lane] = word[31 - lane];
      kernwright::emulator::barrier_arrive(2, 64);
    }
  }
}

// Half of the threads leave early; the others still meet.
extern "C" __global__ void leavers(int* __restrict__ output) {
  __shared__ int word[64];
  if (threadIdx.x >= blockDim.x / 2) return;
  word[threadIdx.x] = threadIdx.x;
  __syncthreads();
  output[threadIdx.x] = word[blockDim.x / 2 - 1 - threadIdx.x];
}

extern "C" __global__ void coordinates(unsigned* __restrict__ output) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  output[block * blockDim.x * blockDim.y * blockDim.z + thread] = 1000 * block + thread;
}

extern "C" __global__ void reversed(const float* __restrict__ input, float* __restrict__ output) {
  extern __shared__ float dynamic[];
  dynamic[threadIdx.x] = input[threadIdx.x];
  __syncthreads();
  output[threadIdx.x] = dynamic[blockDim.x - 1 - threadIdx.x];
}
