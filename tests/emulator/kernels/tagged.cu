// Tagged words of 16 bytes: two pairs of data and epoch. Only the 8-byte halves are atomic.
#include <vector_types.h>

extern "C" __global__ void send_and_receive(uint4* channel, unsigned* __restrict__ output, int words) {
  if (blockIdx.x == 0) {
    for (int i = 0; i < words; ++i) {
      const uint4 word = {100u + i, 1u, 200u + i, 1u};
      __nv_atomic_store(channel + i, &word, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
    }
    return;
  }
  for (int i = 0; i < words; ++i) {
    uint4 word;
    do {
      __nv_atomic_load(channel + i, &word, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
    } while (word.y != 1u || word.w != 1u);  // both halves
    output[2 * i] = word.x;
    output[2 * i + 1] = word.z;
  }
}
