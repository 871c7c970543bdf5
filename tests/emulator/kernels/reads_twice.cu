// One thread reads words that nobody writes any more, each of them twice, while others wait at a barrier.
extern "C" __global__ void reads_twice(const unsigned long long* words, unsigned long long* out) {
  unsigned long long sum = 0;
  if (threadIdx.x == 0)
    for (int i = 0; i < 3; ++i)
      for (int look = 0; look < 2; ++look)
        sum += __nv_atomic_load_n(const_cast<unsigned long long*>(words + i), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
