// hyper_connection qwen38_flash_tp1, candidate wide_rows (route replicated)
// workload: dtype = bfloat16, branches = 4, hidden = 2560, low_rank = 320, tokens = 1, world_size = 1, eps = 1e-06, norm_weight = per_branch
// trees (segments, lanes, chunk): norm [1, 320, 8], down [4, 320, 8], up [1, 32, 2]
// schedule: down = { rows_per_cta = 2 }, up_mix = { load_bytes = 16, rows_per_cta = 16 }, early_norm_weight = false, l1_bypass = false
// scratch: x [1, 10240] bfloat16
// scratch: y [1, 10240] bfloat16
// scratch: lora [1, 320] bfloat16
// boundary: combine_norm -> down -> up_mix
// first: norm -> down -> up_mix
// combine: combine
// final: combine_norm -> down_final -> up_mix
// combine_norm(residual, block, injection, norm_weight, x, y): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// norm(residual, norm_weight, y): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// combine(residual, block, injection, x): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// down(y, down_weight, lora, injection_out): grid [162, 1, 1], block [320, 1, 1], dynamic shared 0
// down_final(y, down_weight, lora): grid [160, 1, 1], block [320, 1, 1], dynamic shared 0
// up_mix(lora, up_weight, y, block_input): grid [160, 1, 1], block [256, 1, 1], dynamic shared 0
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from qwen38_flash_tp1.toml; edit that and run `kernwright generate`.
// Every rounding is written out; nothing is contracted.

#include <cuda_bf16.h>

using storage_t = __nv_bfloat16;

__device__ __forceinline__ float to_float(storage_t value) { return __bfloat162float(value); }
// Round to nearest even; overflow gives infinity, subnormals are kept.
__device__ __forceinline__ storage_t to_storage(float value) { return __float2bfloat16_rn(value); }
// A rounding point that stays in a register.
__device__ __forceinline__ float rounded(float value) { return to_float(to_storage(value)); }

// ---- prelude: arithmetic of the contract ----

// IEEE division and square root, whatever the compiler's defaults.
__device__ __forceinline__ float divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
__device__ __forceinline__ float square_root(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return sqrtf(a);
#endif
}

// 2^k for -126 <= k <= 127, by its exponent bits.
__device__ __forceinline__ float power_of_two(int k) { return __int_as_float((k + 127) << 23); }

// exp(x), within 0.91 ulp: the same operations, hence the same bits, on every target.
__device__ __forceinline__ float exponential(float x) {
  const float shifted = fmaf(x, 0x1.715476p+0f, 0x1.8p+23f);  // x / ln 2, rounded to an integer in the low bits
  const float n = shifted - 0x1.8p+23f;
  float r = fmaf(n, -0x1.62e4p-1f, x);  // ln 2 in two parts; n times the first is exact
  r = fmaf(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6b692p-10f;
  p = fmaf(p, r, 0x1.122f8ap-7f);
  p = fmaf(p, r, 0x1.5556a6p-5f);
  p = fmaf(p, r, 0x1.5554a2p-3f);
  p = fmaf(p, r, 0.5f);
  p = fmaf(p, r, 1.0f);
  p = fmaf(p, r, 1.0f);
  const int exponent = __float_as_int(shifted) - 0x4b400000;
  const int half = exponent >> 1;
  // Two factors: the first product is exact, so that a subnormal result is rounded once.
  float result = p * power_of_two(half) * power_of_two(exponent - half);
  result = x > 0x1.62e42ep+6f ? __int_as_float(0x7f800000) : result;
  result = x < -0x1.9fe36ap+6f ? 0.0f : result;
  return x != x ? x : result;
}

__device__ __forceinline__ float sigmoid(float x) { return divide(1.0f, 1.0f + exponential(-x)); }

// Butterfly over groups of WIDTH lanes: every lane ends with the same sum, whose order is fixed.
template <int WIDTH>
__device__ __forceinline__ float butterfly_sum(float value) {
#pragma unroll
  for (int distance = WIDTH / 2; distance > 0; distance /= 2)
    value = value + __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// Group results are added in increasing order, starting from group 0.
template <int GROUPS>
__device__ __forceinline__ float ordered_sum(const float* groups) {
  float total = groups[0];
#pragma unroll
  for (int group = 1; group < GROUPS; ++group) total = total + groups[group];
  return total;
}

// Moving N consecutive elements with words of BYTES bytes; the addresses are multiples of BYTES.
template <int BYTES> struct Word;
template <> struct Word<4> { using type = unsigned int; };
template <> struct Word<16> { using type = uint4; };

__host__ __device__ constexpr int alignment(int bytes) { return (bytes & -bytes) < 16 ? (bytes & -bytes) : 16; }
template <int N> struct alignas(alignment(N * 2)) Elements { storage_t value[N]; };

template <int BYTES, int N>
__device__ __forceinline__ Elements<N> load(const storage_t* source) {
  using word_t = typename Word<BYTES>::type;
  Elements<N> elements;
#pragma unroll
  for (int i = 0; i < N * 2 / BYTES; ++i)
    reinterpret_cast<word_t*>(elements.value)[i] = reinterpret_cast<const word_t*>(source)[i];
  return elements;
}

template <int BYTES, int N>
__device__ __forceinline__ void store(storage_t* target, const Elements<N>& elements) {
  using word_t = typename Word<BYTES>::type;
#pragma unroll
  for (int i = 0; i < N * 2 / BYTES; ++i)
    reinterpret_cast<word_t*>(target)[i] = reinterpret_cast<const word_t*>(elements.value)[i];
}

// Weights never change while a kernel runs: the read-only path.
template <typename word_t>
__device__ __forceinline__ word_t load_weight_word(const word_t* source) {
#ifdef __CUDA_ARCH__
  return __ldg(source);
#else
  return *source;
#endif
}

template <int BYTES, int N>
__device__ __forceinline__ Elements<N> load_weights(const storage_t* source) {
  using word_t = typename Word<BYTES>::type;
  Elements<N> elements;
#pragma unroll
  for (int i = 0; i < N * 2 / BYTES; ++i)
    reinterpret_cast<word_t*>(elements.value)[i] = load_weight_word(reinterpret_cast<const word_t*>(source) + i);
  return elements;
}

// ---- workload ----

constexpr int BRANCHES = 4;
constexpr int HIDDEN = 2560;
constexpr int LOW_RANK = 320;
constexpr int STATE = BRANCHES * HIDDEN;
constexpr float EPSILON = 0x1.0c6f7ap-20f /* 1e-06 */;

// A power of two: the product is exact, so it equals the division.
__device__ __forceinline__ float over_branches(float value) { return value * 0x1p-2f /* 0.25 */; }

// ---- combine and grouped RMSNorm: one CTA a branch, tree [1, 320, 8] ----

namespace norm_tree {
constexpr int CHUNK = 8;
constexpr int GROUP = 32, GROUPS = 10;
constexpr int THREADS = 320, BYTES = 16;  // of a load: a chunk, 16 bytes at most
}  // namespace norm_tree

// s_b of the combine: 2 * sigmoid(injection_b / HC).
__device__ __forceinline__ float injection_scale(const storage_t* injection, int branch) {
  return 2.0f * sigmoid(over_branches(to_float(injection[branch])));
}

__device__ __forceinline__ Elements<norm_tree::CHUNK> combined(Elements<norm_tree::CHUNK> residual,
                                                          Elements<norm_tree::CHUNK> block, float scale) {
  Elements<norm_tree::CHUNK> x;
#pragma unroll
  for (int i = 0; i < norm_tree::CHUNK; ++i)
    x.value[i] = to_storage(fmaf(to_float(block.value[i]), scale, to_float(residual.value[i])));
  return x;
}

extern "C" __global__ void __launch_bounds__(norm_tree::THREADS)
hyper_connection_combine_norm_wide_rows(const storage_t* __restrict__ residual,
    const storage_t* __restrict__ block, const storage_t* __restrict__ injection,
    const storage_t* __restrict__ norm_weight, storage_t* __restrict__ x_out, storage_t* __restrict__ y_out) {
  using namespace norm_tree;
  const int branch = blockIdx.x;
  const int lane = threadIdx.x;
  const int origin = branch * HIDDEN;
  const float scale = injection_scale(injection, branch);
  const int k = lane * CHUNK;

  Elements<CHUNK> x;
  x = combined(load<BYTES, CHUNK>(residual + origin + k), load<BYTES, CHUNK>(block + k), scale);
  store<BYTES>(x_out + origin + k, x);

  // The norm reads the rounded x.
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const float value = to_float(x.value[i]);
    square = fmaf(value, value, square);
  }
  square = butterfly_sum<GROUP>(square);

  __shared__ float partial[GROUPS];
  if (lane % GROUP == 0) partial[lane / GROUP] = square;
  __syncthreads();
  const float sum = ordered_sum<GROUPS>(partial);
  const float inverse_rms = divide(1.0f, square_root(divide(sum, 2560.0f) + EPSILON));
  const Elements<CHUNK> weight = load_weights<BYTES, CHUNK>(norm_weight + origin + k);
  Elements<CHUNK> y;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const float scaled = to_float(x.value[i]) * inverse_rms;
    y.value[i] = to_storage(fmaf(scaled, to_float(weight.value[i]), scaled));
  }
  store<BYTES>(y_out + origin + k, y);
}

extern "C" __global__ void __launch_bounds__(norm_tree::THREADS)
hyper_connection_norm_wide_rows(const storage_t* __restrict__ residual,
    const storage_t* __restrict__ norm_weight, storage_t* __restrict__ y_out) {
  using namespace norm_tree;
  const int branch = blockIdx.x;
  const int lane = threadIdx.x;
  const int origin = branch * HIDDEN;
  const int k = lane * CHUNK;

  Elements<CHUNK> x;
  x = load<BYTES, CHUNK>(residual + origin + k);

  // The norm reads the rounded x.
  float square = 0.0f;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const float value = to_float(x.value[i]);
    square = fmaf(value, value, square);
  }
  square = butterfly_sum<GROUP>(square);

  __shared__ float partial[GROUPS];
  if (lane % GROUP == 0) partial[lane / GROUP] = square;
  __syncthreads();
  const float sum = ordered_sum<GROUPS>(partial);
  const float inverse_rms = divide(1.0f, square_root(divide(sum, 2560.0f) + EPSILON));
  const Elements<CHUNK> weight = load_weights<BYTES, CHUNK>(norm_weight + origin + k);
  Elements<CHUNK> y;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const float scaled = to_float(x.value[i]) * inverse_rms;
    y.value[i] = to_storage(fmaf(scaled, to_float(weight.value[i]), scaled));
  }
  store<BYTES>(y_out + origin + k, y);
}

// The state alone, where it must be materialised.
extern "C" __global__ void __launch_bounds__(norm_tree::THREADS)
hyper_connection_combine_wide_rows(const storage_t* __restrict__ residual, const storage_t* __restrict__ block,
    const storage_t* __restrict__ injection, storage_t* __restrict__ x_out) {
  using namespace norm_tree;
  const int origin = blockIdx.x * HIDDEN;
  const float scale = injection_scale(injection, blockIdx.x);
  for (int k = threadIdx.x * CHUNK; k < HIDDEN; k += THREADS * CHUNK)
    store<BYTES>(x_out + origin + k,
                 combined(load<BYTES, CHUNK>(residual + origin + k), load<BYTES, CHUNK>(block + k), scale));
}

// ---- down: every row over the whole state, tree [4, 320, 8] ----

namespace down_tree {
constexpr int SEGMENTS = 4, SEGMENT = 2560;
constexpr int CHUNK = 8, GROUP = 32, GROUPS = 10;
constexpr int ACTIVATION_BYTES = 16;
}  // namespace down_tree

// SiLU of the rounded row over HC, rounded again.
__device__ __forceinline__ void finish_low_rank(int row, float total, storage_t* lora_out) {
  const float t = over_branches(rounded(total));
  lora_out[row] = to_storage(t * sigmoid(t));
}

// The rows behind the low rank are the raw injection logits of the next boundary.
__device__ __forceinline__ void finish_row(int row, float total, storage_t* lora_out, storage_t* injection_out) {
  if (row < LOW_RANK)
    finish_low_rank(row, total, lora_out);
  else
    injection_out[row - LOW_RANK] = to_storage(total);
}

namespace down {
constexpr int THREADS = 320, TEAM = 320, TEAMS = 1, BYTES = 16;
constexpr int ROWS_PER_CTA = 2, ROWS_PER_TEAM = 2;
}  // namespace down

extern "C" __global__ void __launch_bounds__(down::THREADS)
hyper_connection_down_wide_rows(const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    storage_t* __restrict__ lora_out, storage_t* __restrict__ injection_out) {
  using namespace down_tree;
  using namespace down;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  __shared__ float partial[ROWS_PER_CTA][SEGMENTS][GROUPS];
  const int tile = blockIdx.x;
  float sum[ROWS_PER_TEAM][SEGMENTS] = {};
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const int k = segment * SEGMENT + member * CHUNK;
    const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(y + k);
#pragma unroll
    for (int i = 0; i < ROWS_PER_TEAM; ++i) {
      const int row = tile * ROWS_PER_CTA + i * TEAMS + team;
      const Elements<CHUNK> weight = load_weights<BYTES, CHUNK>(down_weight + row * STATE + k);
#pragma unroll
      for (int e = 0; e < CHUNK; ++e)
        sum[i][segment] = fmaf(to_float(input.value[e]), to_float(weight.value[e]), sum[i][segment]);
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS_PER_TEAM; ++i)
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      sum[i][segment] = butterfly_sum<GROUP>(sum[i][segment]);
      if (member % GROUP == 0) partial[i * TEAMS + team][segment][member / GROUP] = sum[i][segment];
    }
  __syncthreads();
  if (threadIdx.x < ROWS_PER_CTA) {
    const int row = tile * ROWS_PER_CTA + threadIdx.x;
    float total = ordered_sum<GROUPS>(partial[threadIdx.x][0]);
#pragma unroll
    for (int segment = 1; segment < SEGMENTS; ++segment) total = total + ordered_sum<GROUPS>(partial[threadIdx.x][segment]);
    finish_row(row, total, lora_out, injection_out);
  }
}

namespace down_final {
constexpr int THREADS = 320, TEAM = 320, TEAMS = 1, BYTES = 16;
constexpr int ROWS_PER_CTA = 2, ROWS_PER_TEAM = 2;
}  // namespace down_final

extern "C" __global__ void __launch_bounds__(down_final::THREADS)
hyper_connection_down_final_wide_rows(const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    storage_t* __restrict__ lora_out) {
  using namespace down_tree;
  using namespace down_final;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  __shared__ float partial[ROWS_PER_CTA][SEGMENTS][GROUPS];
  const int tile = blockIdx.x;
  float sum[ROWS_PER_TEAM][SEGMENTS] = {};
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const int k = segment * SEGMENT + member * CHUNK;
    const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(y + k);
#pragma unroll
    for (int i = 0; i < ROWS_PER_TEAM; ++i) {
      const int row = tile * ROWS_PER_CTA + i * TEAMS + team;
      const Elements<CHUNK> weight = load_weights<BYTES, CHUNK>(down_weight + row * STATE + k);
#pragma unroll
      for (int e = 0; e < CHUNK; ++e)
        sum[i][segment] = fmaf(to_float(input.value[e]), to_float(weight.value[e]), sum[i][segment]);
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS_PER_TEAM; ++i)
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      sum[i][segment] = butterfly_sum<GROUP>(sum[i][segment]);
      if (member % GROUP == 0) partial[i * TEAMS + team][segment][member / GROUP] = sum[i][segment];
    }
  __syncthreads();
  if (threadIdx.x < ROWS_PER_CTA) {
    const int row = tile * ROWS_PER_CTA + threadIdx.x;
    float total = ordered_sum<GROUPS>(partial[threadIdx.x][0]);
#pragma unroll
    for (int segment = 1; segment < SEGMENTS; ++segment) total = total + ordered_sum<GROUPS>(partial[threadIdx.x][segment]);
    finish_low_rank(row, total, lora_out);
  }
}

// ---- up and mix: a team takes one hidden coordinate of all branches, tree [1, 32, 2] ----

namespace up_mix {
constexpr int STEPS = 5, LANES = 32;
constexpr int CHUNK = 2, GROUP = 32;
constexpr int ACTIVATION_BYTES = 4;
constexpr int THREADS = 256, TEAM = 32, TEAMS = 8, BYTES = 16;
constexpr int ROWS_PER_CTA = 16, ROWS_PER_TEAM = 2;
constexpr int WORDS_PER_ROW = 40;  // a row of up_weight in words of BYTES bytes
using word_t = Word<BYTES>::type;
}  // namespace up_mix

extern "C" __global__ void __launch_bounds__(up_mix::THREADS)
hyper_connection_up_mix_wide_rows(const storage_t* __restrict__ lora, const storage_t* __restrict__ up_weight,
    const storage_t* __restrict__ y, storage_t* __restrict__ block_input) {
  using namespace up_mix;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  // Loads are wider than a lane's chunk: rows pass through shared memory on their way to the lanes.
  __shared__ word_t staged[ROWS_PER_TEAM][TEAMS][BRANCHES][WORDS_PER_ROW];
  const int tile = blockIdx.x;
#pragma unroll
  for (int i = 0; i < ROWS_PER_TEAM; ++i) {
    const int staged_h = tile * ROWS_PER_CTA + i * TEAMS + team;
#pragma unroll
    for (int word = member; word < BRANCHES * WORDS_PER_ROW; word += TEAM) {
      const int branch = word / WORDS_PER_ROW, column = word % WORDS_PER_ROW;
      const storage_t* row = up_weight + (branch * HIDDEN + staged_h) * LOW_RANK;
      staged[i][team][branch][column] = load_weight_word(reinterpret_cast<const word_t*>(row) + column);
    }
  }
  __syncwarp();
  float sum[ROWS_PER_TEAM][BRANCHES] = {};
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const int k = (step * LANES + member) * CHUNK;
    const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(lora + k);
#pragma unroll
    for (int i = 0; i < ROWS_PER_TEAM; ++i) {
      const int h = tile * ROWS_PER_CTA + i * TEAMS + team;
#pragma unroll
      for (int branch = 0; branch < BRANCHES; ++branch) {
        const Elements<CHUNK> weight =
            load<ACTIVATION_BYTES, CHUNK>(reinterpret_cast<const storage_t*>(staged[i][team][branch]) + k);
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
          sum[i][branch] = fmaf(to_float(input.value[e]), to_float(weight.value[e]), sum[i][branch]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < ROWS_PER_TEAM; ++i)
#pragma unroll
    for (int branch = 0; branch < BRANCHES; ++branch)
      sum[i][branch] = butterfly_sum<GROUP>(sum[i][branch]);

  if (member == 0) {
#pragma unroll
    for (int i = 0; i < ROWS_PER_TEAM; ++i) {
      const int h = tile * ROWS_PER_CTA + i * TEAMS + team;
      float mixed = 0.0f;
#pragma unroll
      for (int branch = 0; branch < BRANCHES; ++branch) {
        const float total = sum[i][branch];
        // The gate is rounded although it never leaves a register.
        mixed = fmaf(sigmoid(rounded(total)), to_float(y[branch * HIDDEN + h]), mixed);
      }
      block_input[h] = to_storage(over_branches(mixed));
    }
  }
}
