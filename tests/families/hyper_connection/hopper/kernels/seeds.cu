// Appended to the preludes: counts results that differ from IEEE arithmetic, for seeds up to `ulps` off the best one.
// A thread takes one binade of values: bits from `first[thread]` on, 2^23 of them.

__device__ float moved(float value, int ulps) { return __int_as_float(__float_as_int(value) + ulps); }

extern "C" __global__ void reciprocals(const unsigned int* first, unsigned int* wrong, int ulps) {
  unsigned int count = 0;
  for (unsigned int i = 0; i < (1u << 23); ++i) {
    const float value = __uint_as_float(first[threadIdx.x] + i);
    const float e = value < 2.0f ? value - 1.0f : value;  // 1 + e takes every value of the binade
    const float divisor = 1.0f + e, best = 1.0f / fmaf(e, 0.25f, 0.25f), expected = 1.0f / divisor;
    for (int off = -ulps; off <= ulps; ++off)
      count += __float_as_uint(reciprocal_from_seed(e, moved(best, off))) != __float_as_uint(expected);
  }
  wrong[threadIdx.x] = count;
}

extern "C" __global__ void inverse_roots(const unsigned int* first, unsigned int* wrong, int ulps) {
  unsigned int count = 0;
  for (unsigned int i = 0; i < (1u << 23); ++i) {
    const float v = __uint_as_float(first[threadIdx.x] + i);
    const float expected = 1.0f / sqrtf(v), best = static_cast<float>(1.0 / sqrt(static_cast<double>(v)));
    for (int off = -ulps; off <= ulps; ++off)
      count += __float_as_uint(inverse_root_from_seed(v, moved(best, off))) != __float_as_uint(expected);
  }
  wrong[threadIdx.x] = count;
}

extern "C" __global__ void quotients(const unsigned int* first, unsigned int* wrong, int) {
  unsigned int count = 0;
  for (unsigned int i = 0; i < (1u << 23); ++i) {
    const float a = __uint_as_float(first[threadIdx.x] + i);
    count += __float_as_uint(quotient_by<LENGTH>(a)) != __float_as_uint(a / LENGTH);
  }
  wrong[threadIdx.x] = count;
}
