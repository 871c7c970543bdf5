#include <cuda_bf16.h>
#include <cuda_fp16.h>

// D = A B + C of one warp: A [16, 16] row-major, B [8, 16] column-major (k is contiguous), C and D [16, 8].
template <typename Element>
__device__ void product(const Element* a, const Element* b, const float* c, float* d) {
  const int lane = threadIdx.x, group = lane / 4, place = lane % 4;
  const unsigned int* rows = reinterpret_cast<const unsigned int*>(a);
  const unsigned int* columns = reinterpret_cast<const unsigned int*>(b);
  float sum[4];
  for (int e = 0; e < 4; ++e) sum[e] = c[(group + e / 2 * 8) * 8 + 2 * place + e % 2];
#ifndef __CUDA_ARCH__
  kernwright::emulator::mma_m16n8k16<Element>(
      sum, rows[group * 8 + place], rows[(group + 8) * 8 + place], rows[group * 8 + place + 4],
      rows[(group + 8) * 8 + place + 4], columns[group * 8 + place], columns[group * 8 + place + 4]);
#endif
  for (int e = 0; e < 4; ++e) d[(group + e / 2 * 8) * 8 + 2 * place + e % 2] = sum[e];
}

extern "C" __global__ void halves(const __half* a, const __half* b, const float* c, float* d) { product(a, b, c, d); }
extern "C" __global__ void brains(const __nv_bfloat16* a, const __nv_bfloat16* b, const float* c, float* d) {
  product(a, b, c, d);
}
