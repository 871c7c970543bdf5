// hyper_connection qwen38_flash_n64, candidate replicated (route replicated)
// workload: dtype = float16, branches = 4, hidden = 2560, low_rank = 320, tokens = (17, 64), world_size = 1, eps = 1e-06, norm_weight = per_branch
// trees (segments, lanes, chunk): norm [1, 320, 8], down [4, 320, 8], up [1, 32, 2]
// schedule: down = { rows_per_cta = 2 }, up_mix = { load_bytes = 16 }, early_norm_weight = true, l1_bypass = false
// scratch: x [64, 10240] float16
// scratch: y [64, 10240] float16
// scratch: lora [64, 320] float16
// argument: uint32 tokens
// boundary: combine_norm -> down -> up_mix
// first: norm -> down -> up_mix
// combine: combine
// final: combine_norm -> down_final -> up_mix
// combine_norm(residual, block, injection, norm_weight, x, y, tokens): grid [4, 64, 1], block [320, 1, 1], dynamic shared 0
// norm(residual, norm_weight, y, tokens): grid [4, 64, 1], block [320, 1, 1], dynamic shared 0
// combine(residual, block, injection, x, tokens): grid [4, 64, 1], block [320, 1, 1], dynamic shared 0
// down(y, down_weight, lora, injection_out, tokens): grid [162, 4, 1], block [320, 1, 1], dynamic shared 0
// down_final(y, down_weight, lora, tokens): grid [160, 4, 1], block [320, 1, 1], dynamic shared 0
// up_mix(lora, up_weight, y, block_input, tokens): grid [320, 4, 1], block [256, 1, 1], dynamic shared 0
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from qwen38_flash_n64.toml; edit that and run `kernwright generate`.
//
// Several tokens: a thread loads its weights once, keeps them in registers and goes through the tokens, up to
// `tokens` of them. A token is computed as if it were alone, so its bits don't depend on the others.
// Every rounding is written out; nothing is contracted.

#include <cuda_fp16.h>

using storage_t = __half;

__device__ __forceinline__ float to_float(storage_t value) { return __half2float(value); }
// Round to nearest even; overflow gives infinity, subnormals are kept.
__device__ __forceinline__ storage_t to_storage(float value) { return __float2half_rn(value); }
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

constexpr int MOST_TOKENS = 16;  // of a block

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
hyper_connection_combine_norm_replicated(const storage_t* __restrict__ residual,
    const storage_t* __restrict__ block, const storage_t* __restrict__ injection,
    const storage_t* __restrict__ norm_weight, storage_t* __restrict__ x_out, storage_t* __restrict__ y_out, unsigned int tokens) {
  using namespace norm_tree;
  if (blockIdx.y >= tokens) return;
  const int branch = blockIdx.x;
  // The row of this CTA's token.
  residual += blockIdx.y * STATE;
  block += blockIdx.y * HIDDEN;
  injection += blockIdx.y * BRANCHES;
  x_out += blockIdx.y * STATE;
  y_out += blockIdx.y * STATE;
  const int lane = threadIdx.x;
  const int origin = branch * HIDDEN;
  const float scale = injection_scale(injection, branch);
  const int k = lane * CHUNK;

  Elements<CHUNK> x;
  Elements<CHUNK> weight;  // on its way while the sum of squares is reduced
  x = combined(load<BYTES, CHUNK>(residual + origin + k), load<BYTES, CHUNK>(block + k), scale);
  store<BYTES>(x_out + origin + k, x);
  weight = load_weights<BYTES, CHUNK>(norm_weight + origin + k);

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
  Elements<CHUNK> y;
#pragma unroll
  for (int i = 0; i < CHUNK; ++i) {
    const float scaled = to_float(x.value[i]) * inverse_rms;
    y.value[i] = to_storage(fmaf(scaled, to_float(weight.value[i]), scaled));
  }
  store<BYTES>(y_out + origin + k, y);
}

extern "C" __global__ void __launch_bounds__(norm_tree::THREADS)
hyper_connection_norm_replicated(const storage_t* __restrict__ residual,
    const storage_t* __restrict__ norm_weight, storage_t* __restrict__ y_out, unsigned int tokens) {
  using namespace norm_tree;
  if (blockIdx.y >= tokens) return;
  const int branch = blockIdx.x;
  // The row of this CTA's token.
  residual += blockIdx.y * STATE;
  y_out += blockIdx.y * STATE;
  const int lane = threadIdx.x;
  const int origin = branch * HIDDEN;
  const int k = lane * CHUNK;

  Elements<CHUNK> x;
  Elements<CHUNK> weight;  // on its way while the sum of squares is reduced
  x = load<BYTES, CHUNK>(residual + origin + k);
  weight = load_weights<BYTES, CHUNK>(norm_weight + origin + k);

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
hyper_connection_combine_replicated(const storage_t* __restrict__ residual, const storage_t* __restrict__ block,
    const storage_t* __restrict__ injection, storage_t* __restrict__ x_out, unsigned int tokens) {
  using namespace norm_tree;
  if (blockIdx.y >= tokens) return;
  // The row of this CTA's token.
  residual += blockIdx.y * STATE;
  block += blockIdx.y * HIDDEN;
  injection += blockIdx.y * BRANCHES;
  x_out += blockIdx.y * STATE;
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

// One CTA a multiprocessor is all that is asked for: with more, some builds spill.
extern "C" __global__ void __launch_bounds__(down::THREADS, 1)
hyper_connection_down_replicated(const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    storage_t* __restrict__ lora_out, storage_t* __restrict__ injection_out, unsigned int tokens) {
  using namespace down_tree;
  using namespace down;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  // A block of tokens has CTAs of its own.
  const unsigned int first = blockIdx.y * MOST_TOKENS;
  if (first >= tokens) return;
  tokens = min(tokens - first, static_cast<unsigned int>(MOST_TOKENS));
  y += first * STATE;
  lora_out += first * LOW_RANK;
  injection_out += first * BRANCHES;
  __shared__ float partial[ROWS_PER_CTA][MOST_TOKENS][SEGMENTS][GROUPS];
  const int tile = blockIdx.x;
  Elements<CHUNK> weight[ROWS_PER_TEAM][SEGMENTS];
#pragma unroll
  for (int i = 0; i < ROWS_PER_TEAM; ++i) {
    const int row = tile * ROWS_PER_CTA + i * TEAMS + team;
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      const int k = segment * SEGMENT + member * CHUNK;
      weight[i][segment] = load_weights<BYTES, CHUNK>(down_weight + row * STATE + k);
    }
  }
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
#pragma unroll 2
    for (unsigned int token = 0; token < tokens; ++token) {
      float sum[ROWS_PER_TEAM] = {};
      const int k = segment * SEGMENT + member * CHUNK;
      const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(y + token * STATE + k);
#pragma unroll
      for (int i = 0; i < ROWS_PER_TEAM; ++i)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
          sum[i] = fmaf(to_float(input.value[e]), to_float(weight[i][segment].value[e]), sum[i]);
#pragma unroll
      for (int i = 0; i < ROWS_PER_TEAM; ++i) {
        const float group_sum = butterfly_sum<GROUP>(sum[i]);
        if (member % GROUP == 0) partial[i * TEAMS + team][token][segment][member / GROUP] = group_sum;
      }
    }
  }
  __syncthreads();
  for (unsigned int i = threadIdx.x; i < ROWS_PER_CTA * tokens; i += THREADS) {
    const unsigned int own = i / tokens, token = i % tokens;
    const int row = tile * ROWS_PER_CTA + own;
    float total = ordered_sum<GROUPS>(partial[own][token][0]);
#pragma unroll
    for (int segment = 1; segment < SEGMENTS; ++segment)
      total = total + ordered_sum<GROUPS>(partial[own][token][segment]);
    finish_row(row, total, lora_out + token * LOW_RANK, injection_out + token * BRANCHES);
  }
}

namespace down_final {
constexpr int THREADS = 320, TEAM = 320, TEAMS = 1, BYTES = 16;
constexpr int ROWS_PER_CTA = 2, ROWS_PER_TEAM = 2;
}  // namespace down_final

// One CTA a multiprocessor is all that is asked for: with more, some builds spill.
extern "C" __global__ void __launch_bounds__(down_final::THREADS, 1)
hyper_connection_down_final_replicated(const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    storage_t* __restrict__ lora_out, unsigned int tokens) {
  using namespace down_tree;
  using namespace down_final;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  // A block of tokens has CTAs of its own.
  const unsigned int first = blockIdx.y * MOST_TOKENS;
  if (first >= tokens) return;
  tokens = min(tokens - first, static_cast<unsigned int>(MOST_TOKENS));
  y += first * STATE;
  lora_out += first * LOW_RANK;
  __shared__ float partial[ROWS_PER_CTA][MOST_TOKENS][SEGMENTS][GROUPS];
  const int tile = blockIdx.x;
  Elements<CHUNK> weight[ROWS_PER_TEAM][SEGMENTS];
#pragma unroll
  for (int i = 0; i < ROWS_PER_TEAM; ++i) {
    const int row = tile * ROWS_PER_CTA + i * TEAMS + team;
#pragma unroll
    for (int segment = 0; segment < SEGMENTS; ++segment) {
      const int k = segment * SEGMENT + member * CHUNK;
      weight[i][segment] = load_weights<BYTES, CHUNK>(down_weight + row * STATE + k);
    }
  }
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
#pragma unroll 2
    for (unsigned int token = 0; token < tokens; ++token) {
      float sum[ROWS_PER_TEAM] = {};
      const int k = segment * SEGMENT + member * CHUNK;
      const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(y + token * STATE + k);
#pragma unroll
      for (int i = 0; i < ROWS_PER_TEAM; ++i)
#pragma unroll
        for (int e = 0; e < CHUNK; ++e)
          sum[i] = fmaf(to_float(input.value[e]), to_float(weight[i][segment].value[e]), sum[i]);
#pragma unroll
      for (int i = 0; i < ROWS_PER_TEAM; ++i) {
        const float group_sum = butterfly_sum<GROUP>(sum[i]);
        if (member % GROUP == 0) partial[i * TEAMS + team][token][segment][member / GROUP] = group_sum;
      }
    }
  }
  __syncthreads();
  for (unsigned int i = threadIdx.x; i < ROWS_PER_CTA * tokens; i += THREADS) {
    const unsigned int own = i / tokens, token = i % tokens;
    const int row = tile * ROWS_PER_CTA + own;
    float total = ordered_sum<GROUPS>(partial[own][token][0]);
#pragma unroll
    for (int segment = 1; segment < SEGMENTS; ++segment)
      total = total + ordered_sum<GROUPS>(partial[own][token][segment]);
    finish_low_rank(row, total, lora_out + token * LOW_RANK);
  }
}

// ---- prelude: exchange inside a warp ----

// The value of another thread of the warp, the one whose number differs by the bits of `distance`.
template <typename value_t>
__device__ __forceinline__ value_t of_partner(value_t value, int distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}

// ---- gates: rows of up_weight times lora, tree [1, 32, 2] ----

namespace up_mix {
constexpr int STEPS = 5, LANES = 32, CHUNK = 2;
constexpr int ACTIVATION_BYTES = 4;
// A row is a hidden coordinate, with 4 gates.
constexpr int THREADS = 256, TEAM = 32, BYTES = 16;
constexpr int ROWS_PER_CTA = 8;
constexpr int GATES = 4;
constexpr int WIDE = 4, STRIDE = LANES / WIDE;  // a load takes WIDE chunks, of as many lanes
using chunk_t = unsigned int;

// The chunks of one lane, in the order of its steps.
struct Chunks { Elements<CHUNK> of[STEPS]; };

// The lanes whose chunks lie in one load are STRIDE threads apart.
__device__ __forceinline__ int lane_of(int member) { return member % STRIDE * WIDE + member / STRIDE; }

// Gives every lane its own chunks of a block of loads: a transposition in which pairs of threads swap halves.
__device__ __forceinline__ void transpose(Elements<CHUNK>* steps, int member) {
#pragma unroll
  for (int distance = WIDE / 2; distance > 0; distance /= 2) {
    const bool upper = member / STRIDE & distance;
#pragma unroll
    for (int step = 0; step < WIDE; ++step) {
      if (step & distance) continue;
      chunk_t& low = reinterpret_cast<chunk_t&>(steps[step]);
      chunk_t& high = reinterpret_cast<chunk_t&>(steps[step + distance]);
      const chunk_t swapped = of_partner(upper ? low : high, distance * STRIDE);
      low = upper ? swapped : low;
      high = upper ? high : swapped;
    }
  }
}

// Butterfly over lanes, whose distances aren't those of their threads.
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
  for (int distance = LANES / 2; distance > 0; distance /= 2)
    value = value + of_partner(value, distance < WIDE ? distance * STRIDE : distance / WIDE);
  return value;
}

__device__ __forceinline__ Chunks load_input(const storage_t* lora, int lane) {
  Chunks chunks;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
    const int k = (step * LANES + lane) * CHUNK;
    chunks.of[step] = load<ACTIVATION_BYTES, CHUNK>(lora + k);
  }
  return chunks;
}

// A row's chunks as they are loaded, before `to_lanes`: nothing here waits for a load.
__device__ __forceinline__ Chunks load_row(const storage_t* row, int member) {
  Chunks chunks;
  const Elements<WIDE * CHUNK> loaded = load_weights<BYTES, WIDE * CHUNK>(
      row + member * WIDE * CHUNK);
#pragma unroll
  for (int i = 0; i < WIDE; ++i)
    chunks.of[i] = reinterpret_cast<const Elements<CHUNK>*>(loaded.value)[i];
  // What is left is loaded by chunks.
  const int lane = lane_of(member);
  const int k = (4 * LANES + lane) * CHUNK;
  chunks.of[4] = load_weights<ACTIVATION_BYTES, CHUNK>(row + k);
  return chunks;
}

__device__ __forceinline__ void to_lanes(Chunks& row, int member) {
  transpose(row.of, member);
}

// The logit of a gate; every thread of the team has it.
__device__ __forceinline__ float logit(const Chunks& input, const Chunks& weight) {
  float sum = 0.0f;
#pragma unroll
  for (int step = 0; step < STEPS; ++step) {
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
      sum = fmaf(to_float(input.of[step].value[e]), to_float(weight.of[step].value[e]), sum);
  }
  return lane_sum(sum);
}
}  // namespace up_mix

// Where the gate of a branch lies in up_weight.
__device__ __forceinline__ int gate_row(int row, int branch) { return branch * HIDDEN + row; }

extern "C" __global__ void __launch_bounds__(up_mix::THREADS)
hyper_connection_up_mix_replicated(const storage_t* __restrict__ lora, const storage_t* __restrict__ up_weight,
    const storage_t* __restrict__ y, storage_t* __restrict__ block_input, unsigned int tokens) {
  using namespace up_mix;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  // A block of tokens has CTAs of its own.
  const unsigned int first = blockIdx.y * MOST_TOKENS;
  if (first >= tokens) return;
  tokens = min(tokens - first, static_cast<unsigned int>(MOST_TOKENS));
  lora += first * LOW_RANK;
  y += first * STATE;
  block_input += first * HIDDEN;
  const int tile = blockIdx.x;
  Chunks weight[GATES];
#pragma unroll
  for (int gate = 0; gate < GATES; ++gate) {
    weight[gate] = load_row(up_weight + gate_row(tile * ROWS_PER_CTA + team, gate) * LOW_RANK, member);
  }
#pragma unroll
  for (int gate = 0; gate < GATES; ++gate)
    to_lanes(weight[gate], member);
  const int row = tile * ROWS_PER_CTA + team;
  // A member keeps the gates of the token that it mixes: all tokens of a row are mixed at once.
  float gate[GATES] = {};
#pragma unroll 2
  for (unsigned int token = 0; token < tokens; ++token) {
    const Chunks input = load_input(lora + token * LOW_RANK, lane_of(member));
#pragma unroll
    for (int branch = 0; branch < GATES; ++branch) {
      const float total = logit(input, weight[branch]);
      gate[branch] = member == token ? total : gate[branch];
    }
  }
  if (member < tokens) {
    float mixed = 0.0f;
#pragma unroll
    for (int branch = 0; branch < BRANCHES; ++branch)
      // The gate is rounded although it never leaves a register.
      mixed = fmaf(sigmoid(rounded(gate[branch])), to_float(y[member * STATE + branch * HIDDEN + row]), mixed);
    block_input[member * HIDDEN + row] = to_storage(over_branches(mixed));
  }
}
