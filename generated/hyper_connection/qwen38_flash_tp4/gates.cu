// hyper_connection qwen38_flash_tp4, candidate gates (route gate_sharded)
// workload: dtype = float16, branches = 4, hidden = 2560, low_rank = 320, tokens = 1, world_size = 4, eps = 1e-06, norm_weight = per_branch
// trees (segments, lanes, chunk): norm [1, 320, 8], down [4, 320, 8], up [1, 32, 2]
// schedule: down = defaults, up = { load_bytes = 16 }, early_norm_weight = true, l1_bypass = false, packed_down = false, down_split = None, fuse_down_gather = false, fuse_combine_norm = false, prefetch_chunks = 0
// scratch: x [1, 10240] float16
// scratch: y [1, 10240] float16
// scratch: shard [1, 81] float16
// scratch: lora [1, 320] float16
// scratch: gates [1, 2560] float16
// argument: pointers[4] channels
// argument: uint32 rank_base
// argument: uint64 timeout_ns
// boundary: combine_norm -> down -> gather_down -> up -> mix
// first: norm -> down -> gather_down -> up -> mix
// combine: combine
// final: combine_norm -> down_final -> gather_down_final -> up -> mix
// combine(residual, block, injection, x): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// combine_norm(residual, block, injection, norm_weight, x, y): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// norm(residual, norm_weight, y): grid [4, 1, 1], block [320, 1, 1], dynamic shared 0
// down(y, down_weight, shard, rank_base): grid [81, 1, 1], block [320, 1, 1], dynamic shared 0
// down_final(y, down_weight, shard, rank_base): grid [80, 1, 1], block [320, 1, 1], dynamic shared 0
// gather_down(channels, shard, lora, injection_out, rank_base, timeout_ns): grid [1, 1, 1], block [256, 1, 1], dynamic shared 0, resident
// gather_down_final(channels, shard, lora, rank_base, timeout_ns): grid [1, 1, 1], block [256, 1, 1], dynamic shared 0, resident
// up(lora, up_weight, gates, rank_base): grid [320, 1, 1], block [256, 1, 1], dynamic shared 0
// mix(channels, gates, y, block_input, rank_base, timeout_ns): grid [10, 1, 1], block [256, 1, 1], dynamic shared 0, resident
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from qwen38_flash_tp4.toml; edit that and run `kernwright generate`.
//
// A rank computes its rows of down, and the gates of its branches for all hidden coordinates; both are exchanged.
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

// ---- prelude: atomics, time ----

// A counter that orders what was written before it; order and scope stand in the name.
__device__ __forceinline__ unsigned int fetch_add_device(unsigned int* counter, unsigned int value) {
  return __nv_atomic_fetch_add(counter, value, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}

// Tagged words: data and its generation travel in one store, so that the data is its own flag.
__device__ __forceinline__ unsigned int load_tagged_system(const unsigned int* word) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(word), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
}
__device__ __forceinline__ void store_tagged_system(unsigned int* word, unsigned int value) {
  __nv_atomic_store_n(word, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
}

// A word that only ever says that something has happened; it orders nothing.
__device__ __forceinline__ unsigned int load_relaxed_device(const unsigned int* word) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(word), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

// Nanoseconds of the clock that all SMs share.
__device__ __forceinline__ unsigned long long nanoseconds() {
#ifdef __CUDA_ARCH__
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
#else
  return kernwright::emulator::globaltimer();
#endif
}

// ---- workload ----

constexpr int BRANCHES = 4;
constexpr int HIDDEN = 2560;
constexpr int LOW_RANK = 320;
constexpr int STATE = BRANCHES * HIDDEN;
constexpr float EPSILON = 0x1.0c6f7ap-20f /* 1e-06 */;

// A power of two: the product is exact, so it equals the division.
__device__ __forceinline__ float over_branches(float value) { return value * 0x1p-2f /* 0.25 */; }

// ---- ranks: what each computes of a boundary ----
// A rank has a launch of its own, or lies with others along the grid's y axis, `rank_base` being the first. Its tensors
// then follow those of the rank before; the weights, which every rank has whole, are there once.

constexpr unsigned int RANKS = 4;
constexpr int RANK_LOW_RANK = 80, RANK_BRANCHES = 1;
constexpr int RANK_ROWS = RANK_LOW_RANK + RANK_BRANCHES;  // of down_weight: its low-rank rows, then its injection rows

// ---- the channel: memory of every rank that its peers may reach, layout version 1 ----

struct Channels { unsigned char* of[RANKS]; };  // of every rank

// A rank's low-rank and injection values.
struct DownExchange {
  static constexpr unsigned int NUMBER = 4, COUNTERS = 1, WORDS = 81;
  static constexpr unsigned long long COUNTERS_AT = 256, WORDS_AT = 260;
  static __device__ __forceinline__ unsigned int* counter(unsigned char* channel, unsigned int cta) {
    return reinterpret_cast<unsigned int*>(channel + COUNTERS_AT) + cta;
  }
};

// The gates of a rank's branches.
struct GateExchange {
  static constexpr unsigned int NUMBER = 5, COUNTERS = 10, WORDS = 2560;
  static constexpr unsigned long long COUNTERS_AT = 3072, WORDS_AT = 3112;
  static __device__ __forceinline__ unsigned int* counter(unsigned char* channel, unsigned int cta) {
    return reinterpret_cast<unsigned int*>(channel + COUNTERS_AT) + cta;
  }
};

// A counter says how many calls there were. Generations are 2 ahead, so that the zeros of a new channel are no tag of the
// first ones.
constexpr unsigned int FIRST_GENERATION = 2;

// One call, as a CTA of a rank sees it.
struct Call {
  unsigned int rank, generation;
  unsigned char* own;  // this rank's channel
};

template <typename Exchange>
__device__ __forceinline__ Call begin(const Channels& channels, unsigned int rank_base, unsigned int cta) {
  const unsigned int rank = rank_base + blockIdx.y;
  return {rank, *Exchange::counter(channels.of[rank], cta) + FIRST_GENERATION, channels.of[rank]};
}

// Advances the counters of all CTAs that the channel could have, so that they stay equal whatever grids follow
// each other. Comes after a barrier behind `begin`: other threads of the CTA read the counter there.
template <typename Exchange>
__device__ __forceinline__ void finish(const Call& call) {
  for (unsigned int cta = blockIdx.x + threadIdx.x * gridDim.x; cta < Exchange::COUNTERS; cta += gridDim.x * blockDim.x)
    *Exchange::counter(call.own, cta) = call.generation + 1 - FIRST_GENERATION;
}

__device__ __forceinline__ unsigned int* record(const Call& call) {
  return reinterpret_cast<unsigned int*>(call.own + 0);
}
// After a failure a rank neither publishes nor waits: its peers are at other calls, and it would mislead them.
__device__ __forceinline__ bool failed(const Call& call) { return load_relaxed_device(record(call)) != 0; }

// Writes the error record; the first failure of a rank counts.
__device__ void report(const Call& call, unsigned int peer, unsigned int exchange, unsigned int seen) {
  unsigned int* const fields = record(call);
  if (fetch_add_device(fields, 1) != 0) return;
  fields[1] = call.rank;
  fields[2] = peer;
  fields[3] = exchange;
  fields[4] = call.generation;
  fields[5] = seen;
  fields[6] = blockIdx.x;
}

// ---- packets: words of a value and, in the high half, the generation's tag ----
// Two slots, by parity, suffice, nothing is cleared and the tag may wrap: a rank publishes generation g + 2 only after
// every peer has published g + 1, hence after it has read all of g. Every word is written in every generation.

template <typename Exchange>
__device__ __forceinline__ unsigned int* packet(unsigned char* channel, const Call& call, unsigned int from) {
  return reinterpret_cast<unsigned int*>(channel + Exchange::WORDS_AT) +
         ((call.generation & 1) * RANKS + from) * Exchange::WORDS;
}

__device__ __forceinline__ unsigned int tagged(storage_t value, const Call& call) {
  return call.generation << 16 | *reinterpret_cast<const unsigned short*>(&value);
}
__device__ __forceinline__ bool ready(unsigned int word, const Call& call) {
  return word >> 16 == (call.generation & 0xffffu);
}
__device__ __forceinline__ storage_t untagged(unsigned int word) {
  const unsigned short bits = static_cast<unsigned short>(word);
  return *reinterpret_cast<const storage_t*>(&bits);
}
// NaN: what stands where a value is missing.
__device__ __forceinline__ storage_t poison() { return untagged(0xffffu); }

template <typename Exchange>
__device__ __forceinline__ void push(const Channels& channels, const Call& call, unsigned int word, storage_t value) {
#pragma unroll
  for (unsigned int peer = 0; peer < RANKS; ++peer)
    if (peer != call.rank)
      store_tagged_system(packet<Exchange>(channels.of[peer], call, call.rank) + word, tagged(value, call));
}

// A peer's word as it lies there now; `receive` waits if it isn't ready.
template <typename Exchange>
__device__ __forceinline__ unsigned int look(const Call& call, unsigned int peer, unsigned int word) {
  return load_tagged_system(packet<Exchange>(call.own, call, peer) + word);
}

// The value of a peer's word that `look` has found. A thread that has waited in vain doesn't wait again.
template <typename Exchange>
__device__ __forceinline__ storage_t receive(const Call& call, unsigned int peer, unsigned int word,
                                             unsigned int found, unsigned long long timeout_ns, bool& alive) {
  if (alive && !ready(found, call)) {
    const unsigned long long began = nanoseconds();
    do {
      if (nanoseconds() - began > timeout_ns) {
        report(call, peer, Exchange::NUMBER, found >> 16);
        alive = false;
        break;
      }
      found = look<Exchange>(call, peer, word);
    } while (!ready(found, call));
  }
  return alive ? untagged(found) : poison();
}

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
hyper_connection_combine_norm_gates(const storage_t* __restrict__ residual,
    const storage_t* __restrict__ block, const storage_t* __restrict__ injection,
    const storage_t* __restrict__ norm_weight, storage_t* __restrict__ x_out, storage_t* __restrict__ y_out) {
  using namespace norm_tree;
  const int branch = blockIdx.x;
  // The row of this CTA's rank.
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
hyper_connection_norm_gates(const storage_t* __restrict__ residual,
    const storage_t* __restrict__ norm_weight, storage_t* __restrict__ y_out) {
  using namespace norm_tree;
  const int branch = blockIdx.x;
  // The row of this CTA's rank.
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
hyper_connection_combine_gates(const storage_t* __restrict__ residual, const storage_t* __restrict__ block,
    const storage_t* __restrict__ injection, storage_t* __restrict__ x_out) {
  using namespace norm_tree;
  // The row of this CTA's rank.
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

// ---- down: a rank's rows over the whole state, tree [4, 320, 8] ----

namespace down_tree {
constexpr int SEGMENTS = 4, SEGMENT = 2560;
constexpr int CHUNK = 8, GROUP = 32, GROUPS = 10;
constexpr int ACTIVATION_BYTES = 16;
}  // namespace down_tree

// Where a rank's i-th row lies in down_weight.
__device__ __forceinline__ int weight_row(unsigned int rank, int i) {
  return i < RANK_LOW_RANK ? rank * RANK_LOW_RANK + i : LOW_RANK + rank * RANK_BRANCHES + (i - RANK_LOW_RANK);
}

// A low-rank row ends in SiLU of the rounded sum over HC; an injection row is a raw logit of the next boundary.
__device__ __forceinline__ storage_t finished(int i, float total) {
  if (i >= RANK_LOW_RANK) return to_storage(total);
  const float t = over_branches(rounded(total));
  return to_storage(t * sigmoid(t));
}

namespace down {
constexpr int THREADS = 320, TEAM = 320, BYTES = 16;
constexpr int ROWS_PER_CTA = 1;
}  // namespace down

extern "C" __global__ void __launch_bounds__(down::THREADS)
hyper_connection_down_gates(
    const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    storage_t* __restrict__ shard_out,
    unsigned int rank_base) {
  using namespace down_tree;
  using namespace down;
  const unsigned int rank = rank_base + blockIdx.y;
  y += blockIdx.y * STATE;
  shard_out += blockIdx.y * RANK_ROWS;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  __shared__ float partial[ROWS_PER_CTA][SEGMENTS][GROUPS];
  const int tile = blockIdx.x;
  float sum[SEGMENTS] = {};
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const int k = segment * SEGMENT + member * CHUNK;
    const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(y + k);
    const int row = tile * ROWS_PER_CTA + team;
    const Elements<CHUNK> weight =
        load_weights<BYTES, CHUNK>(down_weight + weight_row(rank, row) * STATE + k);
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
      sum[segment] = fmaf(to_float(input.value[e]), to_float(weight.value[e]), sum[segment]);
  }

#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const float group_sum = butterfly_sum<GROUP>(sum[segment]);
    if (member % GROUP == 0) partial[team][segment][member / GROUP] = group_sum;
  }
  __syncthreads();

  const int own_row = tile * ROWS_PER_CTA + threadIdx.x;
  const bool finishes = threadIdx.x < ROWS_PER_CTA;
  if (finishes) {
    float total = ordered_sum<GROUPS>(partial[threadIdx.x][0]);
#pragma unroll
    for (int segment = 1; segment < SEGMENTS; ++segment) total = total + ordered_sum<GROUPS>(partial[threadIdx.x][segment]);
    const storage_t value = finished(own_row, total);
    shard_out[own_row] = value;
  }
}

namespace down_final {
constexpr int THREADS = 320, TEAM = 320, BYTES = 16;
constexpr int ROWS = 80, ROWS_PER_CTA = 1;
}  // namespace down_final

extern "C" __global__ void __launch_bounds__(down_final::THREADS)
hyper_connection_down_final_gates(
    const storage_t* __restrict__ y, const storage_t* __restrict__ down_weight,
    storage_t* __restrict__ shard_out,
    unsigned int rank_base) {
  using namespace down_tree;
  using namespace down_final;
  const unsigned int rank = rank_base + blockIdx.y;
  y += blockIdx.y * STATE;
  shard_out += blockIdx.y * RANK_ROWS;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  __shared__ float partial[ROWS_PER_CTA][SEGMENTS][GROUPS];
  const int tile = blockIdx.x;
  float sum[SEGMENTS] = {};
#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const int k = segment * SEGMENT + member * CHUNK;
    const Elements<CHUNK> input = load<ACTIVATION_BYTES, CHUNK>(y + k);
    const int row = tile * ROWS_PER_CTA + team;
    const Elements<CHUNK> weight =
        load_weights<BYTES, CHUNK>(down_weight + weight_row(rank, row) * STATE + k);
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
      sum[segment] = fmaf(to_float(input.value[e]), to_float(weight.value[e]), sum[segment]);
  }

#pragma unroll
  for (int segment = 0; segment < SEGMENTS; ++segment) {
    const float group_sum = butterfly_sum<GROUP>(sum[segment]);
    if (member % GROUP == 0) partial[team][segment][member / GROUP] = group_sum;
  }
  __syncthreads();

  const int own_row = tile * ROWS_PER_CTA + threadIdx.x;
  const bool finishes = threadIdx.x < ROWS_PER_CTA;
  if (finishes) {
    float total = ordered_sum<GROUPS>(partial[threadIdx.x][0]);
#pragma unroll
    for (int segment = 1; segment < SEGMENTS; ++segment) total = total + ordered_sum<GROUPS>(partial[threadIdx.x][segment]);
    const storage_t value = finished(own_row, total);
    shard_out[own_row] = value;
  }
  // No injection here; its places are filled all the same, because every word is sent in every generation.
  if (blockIdx.x == 0)
    for (int row = ROWS + threadIdx.x; row < RANK_ROWS; row += THREADS) {
      const storage_t value = to_storage(0.0f);
      shard_out[row] = value;
    }
}

// ---- gather of the down shards: sends this rank's, receives the others' ----

namespace gather_down {
constexpr int THREADS = 256;
}
extern "C" __global__ void __launch_bounds__(gather_down::THREADS, 1)
hyper_connection_gather_down_gates(const __grid_constant__ Channels channels, const storage_t* __restrict__ shard,
    storage_t* __restrict__ lora_out, storage_t* __restrict__ injection_out, unsigned int rank_base,
    unsigned long long timeout_ns) {
  const Call call = begin<DownExchange>(channels, rank_base, blockIdx.x);
  shard += blockIdx.y * RANK_ROWS;
  lora_out += blockIdx.y * LOW_RANK;
  injection_out += blockIdx.y * BRANCHES;
  bool alive = !failed(call);
  if (alive)
    for (unsigned int word = threadIdx.x; word < RANK_ROWS; word += gather_down::THREADS)
      push<DownExchange>(channels, call, word, shard[word]);
#pragma unroll 1
  for (unsigned int i = threadIdx.x; i < RANKS * RANK_ROWS; i += gather_down::THREADS) {
    const unsigned int rank = i / RANK_ROWS, word = i % RANK_ROWS;
    const bool own = rank == call.rank;
    const unsigned int found = own ? tagged(shard[word], call) : look<DownExchange>(call, rank, word);
    const storage_t value = receive<DownExchange>(call, rank, word, found, timeout_ns, alive);
    if (word < RANK_LOW_RANK)
      lora_out[rank * RANK_LOW_RANK + word] = value;
    else
      injection_out[rank * RANK_BRANCHES + (word - RANK_LOW_RANK)] = value;
  }
  __syncthreads();  // every thread has read the counter
  finish<DownExchange>(call);
}

extern "C" __global__ void __launch_bounds__(gather_down::THREADS, 1)
hyper_connection_gather_down_final_gates(const __grid_constant__ Channels channels, const storage_t* __restrict__ shard,
    storage_t* __restrict__ lora_out, unsigned int rank_base,
    unsigned long long timeout_ns) {
  const Call call = begin<DownExchange>(channels, rank_base, blockIdx.x);
  shard += blockIdx.y * RANK_ROWS;
  lora_out += blockIdx.y * LOW_RANK;
  bool alive = !failed(call);
  if (alive)
    for (unsigned int word = threadIdx.x; word < RANK_ROWS; word += gather_down::THREADS)
      push<DownExchange>(channels, call, word, shard[word]);
#pragma unroll 1
  for (unsigned int i = threadIdx.x; i < RANKS * RANK_LOW_RANK; i += gather_down::THREADS) {
    const unsigned int rank = i / RANK_LOW_RANK, word = i % RANK_LOW_RANK;
    const bool own = rank == call.rank;
    const unsigned int found = own ? tagged(shard[word], call) : look<DownExchange>(call, rank, word);
    const storage_t value = receive<DownExchange>(call, rank, word, found, timeout_ns, alive);
    lora_out[i] = value;
  }
  __syncthreads();  // every thread has read the counter
  finish<DownExchange>(call);
}

// ---- prelude: exchange inside a warp ----

// The value of another thread of the warp, the one whose number differs by the bits of `distance`.
template <typename value_t>
__device__ __forceinline__ value_t of_partner(value_t value, int distance) {
  return __shfl_xor_sync(0xffffffffu, value, distance);
}

// ---- gates: rows of up_weight times lora, tree [1, 32, 2] ----

namespace up {
constexpr int STEPS = 5, LANES = 32, CHUNK = 2;
constexpr int ACTIVATION_BYTES = 4;
// A row is a hidden coordinate of a rank.
constexpr int THREADS = 256, TEAM = 32, BYTES = 16;
constexpr int ROWS_PER_CTA = 8;
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
}  // namespace up

// Where the gate of one of a rank's branches lies in up_weight.
__device__ __forceinline__ int gate_row(unsigned int rank, int row) {
  return rank * HIDDEN + row;
}

extern "C" __global__ void __launch_bounds__(up::THREADS)
hyper_connection_up_gates(const storage_t* __restrict__ lora, const storage_t* __restrict__ up_weight,
    storage_t* __restrict__ gates_out, unsigned int rank_base) {
  using namespace up;
  const unsigned int rank = rank_base + blockIdx.y;
  lora += blockIdx.y * LOW_RANK;
  gates_out += blockIdx.y * RANK_BRANCHES * HIDDEN;
  const int team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  const Chunks input = load_input(lora, lane_of(member));
  const int tile = blockIdx.x;
  Chunks weight;
  weight = load_row(up_weight + gate_row(rank, tile * ROWS_PER_CTA + team) * LOW_RANK, member);
  to_lanes(weight, member);
  const int row = tile * ROWS_PER_CTA + team;
  const storage_t value = to_storage(logit(input, weight));
  if (member == 0) gates_out[row] = value;
}

// ---- exchange of the gates, and mix: a thread takes one hidden coordinate ----

namespace mix {
constexpr int THREADS = 256;
}

extern "C" __global__ void __launch_bounds__(mix::THREADS, 1)
hyper_connection_mix_gates(const __grid_constant__ Channels channels, const storage_t* __restrict__ gates,
    const storage_t* __restrict__ y, storage_t* __restrict__ block_input, unsigned int rank_base,
    unsigned long long timeout_ns) {
  const Call call = begin<GateExchange>(channels, rank_base, blockIdx.x);
  gates += blockIdx.y * RANK_BRANCHES * HIDDEN;
  y += blockIdx.y * STATE;
  block_input += blockIdx.y * HIDDEN;
  const int h = blockIdx.x * mix::THREADS + threadIdx.x;
  bool alive = !failed(call);
  if (alive) push<GateExchange>(channels, call, h, gates[h]);
  unsigned int found[BRANCHES];
#pragma unroll
  for (int branch = 0; branch < BRANCHES; ++branch) {  // all are on their way before the first is looked at
    const int word = branch % RANK_BRANCHES * HIDDEN + h;
    found[branch] = branch / RANK_BRANCHES == call.rank ? tagged(gates[word], call)
                                                        : look<GateExchange>(call, branch / RANK_BRANCHES, word);
  }
  float mixed = 0.0f;
#pragma unroll
  for (int branch = 0; branch < BRANCHES; ++branch) {
    const int word = branch % RANK_BRANCHES * HIDDEN + h;
    const storage_t gate =
        receive<GateExchange>(call, branch / RANK_BRANCHES, word, found[branch], timeout_ns, alive);
    mixed = fmaf(sigmoid(to_float(gate)), to_float(y[branch * HIDDEN + h]), mixed);
  }
  block_input[h] = alive ? to_storage(over_branches(mixed)) : poison();
  __syncthreads();  // every thread has read the counter
  finish<GateExchange>(call);
}
