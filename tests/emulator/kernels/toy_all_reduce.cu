// A toy all-reduce for the tests: every rank fills its own buffer, tells its peers, waits for theirs, sums all
// in rank order, and waits until everybody has read before the buffers are filled again.

#ifndef RANKS
#define RANKS 2
#endif

struct Peers {
  float* data[RANKS];
  unsigned int* flags[RANKS];
};

__device__ __forceinline__ unsigned int load_acquire(const unsigned int* flag) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(flag), __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM);
}
__device__ __forceinline__ void store_release(unsigned int* flag, unsigned int value) {
  __nv_atomic_store_n(flag, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
}
// Epochs are compared modulo 2^32.
__device__ __forceinline__ bool reached(unsigned int seen, unsigned int epoch) {
  return static_cast<int>(seen - epoch) >= 0;
}

// Tell every peer that this CTA has come to `epoch`, and wait until it is there as well.
__device__ __forceinline__ void meet(const Peers& peers, int rank, int phase, unsigned int epoch) {
  const int row = (blockIdx.x * 2 + phase) * RANKS;
  if (threadIdx.x < RANKS) {
    store_release(peers.flags[threadIdx.x] + row + rank, epoch);
    while (!reached(load_acquire(peers.flags[rank] + row + threadIdx.x), epoch)) {
    }
  }
}

extern "C" __global__ void toy_all_reduce(Peers peers, const float* __restrict__ input, float* __restrict__ output,
                                          unsigned int epoch, int rank, int count) {
  const int first = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.x * blockDim.x;
  for (int i = first; i < count; i += stride) peers.data[rank][i] = input[i];
  __syncthreads();  // the data of the whole CTA is there
  meet(peers, rank, 0, epoch);
  __syncthreads();  // the peers' data is there
  for (int i = first; i < count; i += stride) {
    float sum = peers.data[0][i];
    for (int peer = 1; peer < RANKS; ++peer) sum = sum + peers.data[peer][i];
    output[i] = sum;
  }
  __syncthreads();  // the whole CTA has read
  meet(peers, rank, 1, epoch);
}
