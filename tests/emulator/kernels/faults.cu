// One mistake a kernel.
#include <cstdint>
#include <vector_types.h>

extern "C" __global__ void writes_past_the_end(float* buffer, int count) { buffer[count + threadIdx.x] = 1.0f; }

extern "C" __global__ void reads_before_the_beginning(const float* buffer, float* output) {
  output[0] = buffer[-1 - static_cast<int>(threadIdx.x)];
}

extern "C" __global__ void follows_a_null_pointer(float* output) {
  const float* nothing = reinterpret_cast<const float*>(threadIdx.x * 4ull);
  output[0] = *nothing;
}

extern "C" __global__ void writes_its_input(const float* input) { const_cast<float*>(input)[threadIdx.x] = 0.0f; }

extern "C" __global__ void leaves_the_array(float* output, int index) {
  __shared__ float values[32];
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  output[threadIdx.x] = values[threadIdx.x + index];
}

extern "C" __global__ void leaves_dynamic_memory(float* output, int index) {
  extern __shared__ float dynamic[];
  dynamic[threadIdx.x + index] = 1.0f;
  __syncthreads();
  output[threadIdx.x] = dynamic[threadIdx.x];
}

extern "C" __global__ void loads_misaligned(const float* input, float* output) {
  const float4 wide = *reinterpret_cast<const float4*>(input + threadIdx.x);
  output[threadIdx.x] = wide.x;
}

extern "C" __global__ void reads_unwritten_shared(float* output) {
  __shared__ float values[64];
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  output[threadIdx.x] = values[threadIdx.x + 1] + 1.0f;  // nobody wrote values[32]
}

extern "C" __global__ void writes_every_second(float* output) { output[2 * threadIdx.x] = 1.0f; }

extern "C" __global__ void half_a_barrier(float* output) {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    kernwright::emulator::barrier_sync(1, 32);
  }
  output[threadIdx.x] = 1.0f;
}

extern "C" __global__ void two_barriers(float* output) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
  output[threadIdx.x] = 1.0f;
}

extern "C" __global__ void not_in_its_mask(int* output) {
  output[threadIdx.x] = __shfl_sync(0x0000ffffu, static_cast<int>(threadIdx.x), 0);
}

extern "C" __global__ void reads_an_absent_lane(int* output) {
  if (threadIdx.x < 16) output[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, static_cast<int>(threadIdx.x), 16);
}

extern "C" __global__ void masks_disagree(int* output) {
  const unsigned mask = threadIdx.x < 16 ? 0xffffffffu : 0xfffffffeu;
  output[threadIdx.x] = __shfl_xor_sync(mask, static_cast<int>(threadIdx.x), 1);
}

extern "C" __global__ void arrives_twice() {
  kernwright::emulator::barrier_arrive(3, 64);
  kernwright::emulator::barrier_arrive(3, 64);
}

extern "C" __global__ void polls_for_ever(const unsigned* flag) {
  while (__nv_atomic_load_n(flag, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM) != 1u) {
  }
}

extern "C" __global__ void polls_several_for_ever(const unsigned* flags) {
  unsigned ready = 0;
  while (ready != 4) {
    ready = 0;
    for (int i = 0; i < 4; ++i)
      ready += __nv_atomic_load_n(flags + i, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM) == 1u;
  }
}

extern "C" __global__ void counts_at_block_scope(unsigned* counter) {
  __nv_atomic_add(counter, 1u, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_BLOCK);
}

extern "C" __global__ void traps(int* output) {
  if (threadIdx.x == 3) __trap();
  output[threadIdx.x] = 1;
}

extern "C" __global__ void divides_by_zero(int* output, int zero) { output[threadIdx.x] = 7 / (zero * output[0]); }

__device__ __noinline__ int recurse(int depth) {
  volatile char room[512];
  room[depth % 512] = static_cast<char>(depth);
  return depth == 0 ? room[0] : recurse(depth - 1) + room[depth % 512];
}
extern "C" __global__ void recurses(int* output, int depth) { output[threadIdx.x] = recurse(depth); }

extern "C" __global__ void converts(int* output, float value) { output[threadIdx.x] = static_cast<int>(value); }

extern "C" __global__ void waits_for_nobody(std::uint64_t* output) {
  __shared__ __align__(8) std::uint64_t barrier;
  kernwright::emulator::mbarrier_wait_parity(&barrier, 0);
  output[threadIdx.x] = barrier;
}

extern "C" __global__ void forgets_its_copy(float* output) {
  __shared__ __align__(16) float values[32];
  values[threadIdx.x] = 1.0f;
  __syncthreads();
  if (threadIdx.x == 0) kernwright::emulator::cp_async_bulk_to_global(output, values, sizeof values);
}

extern "C" __global__ void waits_for_a_plain_variable(volatile int* flag) {
  while (*flag == 0) {
  }
}
