// hyper_connection qwen38_flash_tp1, candidate tensor_core (route tensor_core)
// workload: dtype = float16, branches = 4, hidden = 2560, low_rank = 320, tokens = 1, world_size = 1, eps = 1e-06, norm_weight = per_branch
// trees (segments, lanes, chunk): norm [1, 320, 8], down [4, 320, 8], up [1, 32, 2]
// schedule: segments = 8, warps = 8, row_tiles = 1, tokens_per_cta = None, tolerance = { relative_l2 = 0.008 }
// scratch: x [1, 10240] float16
// scratch: y [1, 10240] float16
// scratch: lora [1, 320] float16
// scratch: partials [1, 8, 336] float32
// scratch: partials_final [1, 8, 320] float32
// argument: uint32 tokens
// boundary: combine_norm -> down -> finish -> up_mix
// first: norm -> down -> finish -> up_mix
// combine: combine
// final: combine_norm -> down_final -> finish_final -> up_mix
// combine_norm(residual, block, injection, norm_weight, x, y, tokens): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// norm(residual, norm_weight, y, tokens): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// combine(residual, block, injection, x, tokens): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// down(y, down_weight, partials, tokens): grid [21, 8, 1], block [256, 1, 1], dynamic shared 10240
// down_final(y, down_weight, partials_final, tokens): grid [20, 8, 1], block [256, 1, 1], dynamic shared 10240
// finish(partials, lora, injection_out, tokens): grid [3, 1, 1], block [128, 1, 1], dynamic shared 0
// finish_final(partials_final, lora, tokens): grid [3, 1, 1], block [128, 1, 1], dynamic shared 0
// up_mix(lora, up_weight, y, block_input, tokens): grid [160, 1, 1], block [128, 1, 1], dynamic shared 0
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from qwen38_flash_tp1.toml; edit that and run `kernwright generate`.
//
// Both projections run on tensor cores: products are exact, sums are FP32 in an order that isn't specified, so this text
// proves itself against FP64 within its tolerance. What is stated is all the rest: a row of down is the sum of
// 8 x 8 parts, added in order, whatever the number of tokens; a token never meets another one.
// A warp keeps its weights in registers and goes through the tokens of its CTA, eight at a time.

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

// A warp's product on tensor cores, 16 rows of weights by 8 tokens, added to `sum`. Lane 4 * g + p has rows g and g + 8 of
// the weights and token g: eight consecutive elements of each, columns 8 * p to 8 * p + 7 of the 32 of a step. They make two
// products 16 deep. Which columns those are is left to the lanes, as both operands mean the same ones, so that nothing has to
// pass through shared memory. sum: rows g (0, 1) and g + 8 (2, 3) for tokens 2 * p and 2 * p + 1.
__device__ __forceinline__ void mma(float (&sum)[4], unsigned int a0, unsigned int a1, unsigned int a2, unsigned int a3,
                                    unsigned int b0, unsigned int b1) {
#ifdef __CUDA_ARCH__
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
               "{ %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
  kernwright::emulator::mma_m16n8k16<storage_t>(sum, a0, a1, a2, a3, b0, b1);
#endif
}

// Sixteen bytes that nothing writes while the kernel runs. Volatile keeps loads and products in the order of the text: the
// compiler would put each load in front of its product, and wait for one after the other.
__device__ __forceinline__ uint4 load_ahead(const storage_t* source) {
#ifdef __CUDA_ARCH__
  uint4 word;
  asm volatile("ld.global.nc.v4.u32 { %0, %1, %2, %3 }, [%4];"
               : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w) : "l"(source));
  return word;
#else
  return *reinterpret_cast<const uint4*>(source);
#endif
}

// The rows of weights that a lane has of a tile, in one step.
struct Rows { uint4 low, high; };

__device__ __forceinline__ Rows load_rows(const storage_t* low, int stride) {
  return {load_ahead(low), load_ahead(low + 8 * stride)};
}

__device__ __forceinline__ void multiply_add(float (&sum)[4], const Rows& rows, const uint4& token) {
  mma(sum, rows.low.x, rows.high.x, rows.low.y, rows.high.y, token.x, token.y);
  mma(sum, rows.low.z, rows.high.z, rows.low.w, rows.high.w, token.z, token.w);
}

// ---- workload ----

constexpr int BRANCHES = 4;
constexpr int HIDDEN = 2560;
constexpr int LOW_RANK = 320;
constexpr int STATE = BRANCHES * HIDDEN;
constexpr float EPSILON = 0x1.0c6f7ap-20f /* 1e-06 */;

// A power of two: the product is exact, so it equals the division.
__device__ __forceinline__ float over_branches(float value) { return value * 0x1p-2f /* 0.25 */; }

constexpr int TILE_ROWS = 16, TILE_TOKENS = 8, STEP = 32;  // of a tile, in columns for a step
constexpr int TOKENS = 16;  // a CTA's

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
hyper_connection_combine_norm_tensor_core(const storage_t* __restrict__ residual,
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
hyper_connection_norm_tensor_core(const storage_t* __restrict__ residual,
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
hyper_connection_combine_tensor_core(const storage_t* __restrict__ residual, const storage_t* __restrict__ block,
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

// ---- down: the columns of a row shared by 8 CTAs of 8 warps ----

extern __shared__ float sums[];  // [warp][token][row]

namespace down_sum {
constexpr int SEGMENTS = 8, WARPS = 8, THREADS = 256;
constexpr int STEPS = 5, ROW_TILES = 1, CTA_ROWS = 16;
constexpr int FINISH_THREADS = 128;

// In `sums`; the padding lets a warp store to 32 different banks.
__device__ __forceinline__ int sum_at(int warp, int token, int row) {
  return (warp * TOKENS + token) * 20 + row;
}
}  // namespace down_sum

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
constexpr int ROWS = 336;  // of the weight as it is stored, a whole number of tiles
}  // namespace down

extern "C" __global__ void __launch_bounds__(down_sum::THREADS)
hyper_connection_down_tensor_core(const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    float* __restrict__ partials, unsigned int tokens) {
  using namespace down_sum;
  using namespace down;
  const unsigned int first = blockIdx.z * TOKENS;
  if (first >= tokens) return;
  const unsigned int count = min(tokens - first, static_cast<unsigned int>(TOKENS));
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
  const int origin = blockIdx.x * CTA_ROWS, segment = blockIdx.y;
  const int column = (segment * WARPS + warp) * STEPS * STEP + place * 8;

  Rows weight[ROW_TILES][STEPS];
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i) {
    const int row = origin + i * TILE_ROWS + group;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
      weight[i][step] = load_rows(down_weight + row * STATE + column + step * STEP, STATE);
  }

#pragma unroll 2
  for (unsigned int tile = 0; tile < count; tile += TILE_TOKENS) {
    // Behind the last token its values stand in: their sums are not used.
    const storage_t* const token = y + (first + min(tile + group, count - 1)) * STATE + column;
    uint4 input[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) input[step] = load_ahead(token + step * STEP);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      float sum[4] = {};
#pragma unroll
      for (int step = 0; step < STEPS; ++step) multiply_add(sum, weight[i][step], input[step]);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[sum_at(warp, tile + 2 * place + e % 2, i * TILE_ROWS + group + e / 2 * 8)] = sum[e];
    }
  }
  __syncthreads();

  for (unsigned int i = threadIdx.x; i < count * CTA_ROWS; i += THREADS) {
    const int token = i / CTA_ROWS, row = i % CTA_ROWS;
    float total = sums[sum_at(0, token, row)];
#pragma unroll
    for (int part = 1; part < WARPS; ++part) total = total + sums[sum_at(part, token, row)];
    partials[((first + token) * SEGMENTS + segment) * ROWS + origin + row] = total;
  }
}

namespace down_final {
constexpr int ROWS = 320;  // of the weight as it is stored, a whole number of tiles
}  // namespace down_final

extern "C" __global__ void __launch_bounds__(down_sum::THREADS)
hyper_connection_down_final_tensor_core(const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    float* __restrict__ partials, unsigned int tokens) {
  using namespace down_sum;
  using namespace down_final;
  const unsigned int first = blockIdx.z * TOKENS;
  if (first >= tokens) return;
  const unsigned int count = min(tokens - first, static_cast<unsigned int>(TOKENS));
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
  const int origin = blockIdx.x * CTA_ROWS, segment = blockIdx.y;
  const int column = (segment * WARPS + warp) * STEPS * STEP + place * 8;

  Rows weight[ROW_TILES][STEPS];
#pragma unroll
  for (int i = 0; i < ROW_TILES; ++i) {
    const int row = origin + i * TILE_ROWS + group;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
      weight[i][step] = load_rows(down_weight + row * STATE + column + step * STEP, STATE);
  }

#pragma unroll 2
  for (unsigned int tile = 0; tile < count; tile += TILE_TOKENS) {
    // Behind the last token its values stand in: their sums are not used.
    const storage_t* const token = y + (first + min(tile + group, count - 1)) * STATE + column;
    uint4 input[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) input[step] = load_ahead(token + step * STEP);
#pragma unroll
    for (int i = 0; i < ROW_TILES; ++i) {
      float sum[4] = {};
#pragma unroll
      for (int step = 0; step < STEPS; ++step) multiply_add(sum, weight[i][step], input[step]);
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[sum_at(warp, tile + 2 * place + e % 2, i * TILE_ROWS + group + e / 2 * 8)] = sum[e];
    }
  }
  __syncthreads();

  for (unsigned int i = threadIdx.x; i < count * CTA_ROWS; i += THREADS) {
    const int token = i / CTA_ROWS, row = i % CTA_ROWS;
    float total = sums[sum_at(0, token, row)];
#pragma unroll
    for (int part = 1; part < WARPS; ++part) total = total + sums[sum_at(part, token, row)];
    partials[((first + token) * SEGMENTS + segment) * ROWS + origin + row] = total;
  }
}

// Adds the segments in order; a thread finishes a row.
extern "C" __global__ void __launch_bounds__(down_sum::FINISH_THREADS)
hyper_connection_finish_tensor_core(const float* __restrict__ partials, storage_t* __restrict__ lora_out,
storage_t* __restrict__ injection_out, unsigned int tokens) {
  using namespace down_sum;
  using namespace down;
  const unsigned int token = blockIdx.y;
  const int row = blockIdx.x * FINISH_THREADS + threadIdx.x;
  if (token >= tokens || row >= LOW_RANK + BRANCHES) return;
  const float* const own = partials + token * SEGMENTS * ROWS + row;
  float part[SEGMENTS];
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) part[segment] = own[segment * ROWS];
  const float total = ordered_sum<SEGMENTS>(part);
  finish_row(row, total, lora_out + token * LOW_RANK, injection_out + token * BRANCHES);
}

// Adds the segments in order; a thread finishes a row.
extern "C" __global__ void __launch_bounds__(down_sum::FINISH_THREADS)
hyper_connection_finish_final_tensor_core(const float* __restrict__ partials, storage_t* __restrict__ lora_out,
unsigned int tokens) {
  using namespace down_sum;
  using namespace down_final;
  const unsigned int token = blockIdx.y;
  const int row = blockIdx.x * FINISH_THREADS + threadIdx.x;
  if (token >= tokens || row >= LOW_RANK) return;
  const float* const own = partials + token * SEGMENTS * ROWS + row;
  float part[SEGMENTS];
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) part[segment] = own[segment * ROWS];
  const float total = ordered_sum<SEGMENTS>(part);
  finish_low_rank(row, total, lora_out + token * LOW_RANK);
}

// ---- up and mix: a CTA takes 16 hidden coordinates, each of its warps the gates of one branch ----

namespace up_mix {
constexpr int THREADS = 32 * BRANCHES, STEPS = LOW_RANK / STEP;
}  // namespace up_mix

extern "C" __global__ void __launch_bounds__(up_mix::THREADS)
hyper_connection_up_mix_tensor_core(const storage_t* __restrict__ lora, const storage_t* __restrict__ up_weight,
    const storage_t* __restrict__ y, storage_t* __restrict__ block_input, unsigned int tokens) {
  using namespace up_mix;
  const unsigned int first = blockIdx.y * TOKENS;
  if (first >= tokens) return;
  const unsigned int count = min(tokens - first, static_cast<unsigned int>(TOKENS));
  const int branch = threadIdx.x / 32, group = threadIdx.x % 32 / 4, place = threadIdx.x % 4;
  const int origin = blockIdx.x * TILE_ROWS;
  __shared__ float gate[BRANCHES][TOKENS][20];  // the padding keeps a warp's stores in different banks

  Rows weight[STEPS];
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
    weight[step] = load_rows(up_weight + (branch * HIDDEN + origin + group) * LOW_RANK + step * STEP + place * 8, LOW_RANK);

  for (unsigned int tile = 0; tile < count; tile += TILE_TOKENS) {
    // Behind the last token its values stand in: their gates are not used.
    const storage_t* const token = lora + (first + min(tile + group, count - 1)) * LOW_RANK + place * 8;
    uint4 input[STEPS];
#pragma unroll
    for (int step = 0; step < STEPS; ++step) input[step] = load_ahead(token + step * STEP);
    float sum[4] = {};
#pragma unroll
    for (int step = 0; step < STEPS; ++step) multiply_add(sum, weight[step], input[step]);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      // The gate is rounded although it is never stored.
      gate[branch][tile + 2 * place + e % 2][group + e / 2 * 8] = sigmoid(rounded(sum[e]));
  }
  __syncthreads();

  for (unsigned int i = threadIdx.x; i < count * TILE_ROWS; i += THREADS) {
    const int token = i / TILE_ROWS, row = i % TILE_ROWS;
    const storage_t* const mixed_with = y + (first + token) * STATE + origin + row;
    float mixed = 0.0f;
#pragma unroll
    for (int b = 0; b < BRANCHES; ++b) mixed = fmaf(gate[b][token][row], to_float(mixed_with[b * HIDDEN]), mixed);
    block_input[(first + token) * HIDDEN + origin + row] = to_storage(over_branches(mixed));
  }
}
