// Two grids of a stream that overlap: the second may begin as soon as the first lets it, and waits for its end
// before it reads what the first wrote.

namespace emulated = kernwright::emulator;

extern "C" __global__ void first_grid(const int* __restrict__ input, int* __restrict__ middle) {
  emulated::griddepcontrol_launch_dependents();
  __syncthreads();
  middle[blockIdx.x * blockDim.x + threadIdx.x] = 2 * input[blockIdx.x * blockDim.x + threadIdx.x];
}

extern "C" __global__ void second_grid(const int* __restrict__ middle, int* __restrict__ output) {
  emulated::griddepcontrol_wait();  // the first grid has ended
  const int i = blockIdx.x * blockDim.x + threadIdx.x, last = gridDim.x * blockDim.x - 1;
  output[i] = middle[last - i] + 1;
}

// Polls a flag that nobody sets, but not for ever.
extern "C" __global__ void bounded(const unsigned* __restrict__ flag, unsigned* __restrict__ record) {
  const unsigned long long start = emulated::globaltimer();
  while (__nv_atomic_load_n(flag, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM) != 7) {
    emulated::nanosleep(100);
    if (emulated::globaltimer() - start > 30000000000ull) {
      record[0] = 0xdeadu;
      return;
    }
  }
  record[0] = 1;
}
