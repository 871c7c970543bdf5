// hyper_connection qwen38_flash_tp1, candidate one_kernel (route one_kernel)
// workload: dtype = float16, branches = 4, hidden = 2560, low_rank = 320, tokens = 1, world_size = 1, eps = 1e-06, norm_weight = per_branch
// trees (segments, lanes, chunk): norm [1, 320, 8], down [4, 320, 8], up [1, 32, 2]
// schedule: pace_cycles = 520, hurried = nothing, order = weights_first, evict_first = true, seeded = true, ctas = 132, threads = None, exchange_bytes = 16, polls = first_lane, look_after_cycles = 1100, down = defaults, up = { converted = 20 }
// state: exchange [1312] int64
// state: generations [132] int32
// state: record [8] int32
// argument: uint64 timeout_ns
// boundary: boundary
// first: first
// final: final
// combine: combine
// boundary(residual, block, injection, norm_weight, down_weight, up_weight, x, block_input, injection_out, exchange, generations, record, timeout_ns): grid [132, 1, 1], block [384, 1, 1], dynamic shared 107520, programmatic, resident
// first(residual, norm_weight, down_weight, up_weight, block_input, injection_out, exchange, generations, record, timeout_ns): grid [132, 1, 1], block [384, 1, 1], dynamic shared 107520, programmatic, resident
// final(residual, block, injection, norm_weight, down_weight, up_weight, block_input, exchange, generations, record, timeout_ns): grid [132, 1, 1], block [384, 1, 1], dynamic shared 107520, programmatic, resident
// combine(residual, block, injection, x): grid [10, 1, 1], block [128, 1, 1], dynamic shared 0, programmatic
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from qwen38_flash_tp1.toml; edit that and run `kernwright generate`.
//
// A boundary in one launch. A CTA sums some rows of down over one branch, all CTAs exchange these sums, and each then
// mixes some hidden coordinates. The weights come to shared memory while the kernel before this one still runs.
// Of a CTA's warps 10 compute, one finishes rows and prepares the mix, one issues the copies.
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

// Reciprocal and square root without a branch: the hardware's approximation as a seed, then corrections by FMA. The
// result is IEEE division's and square root's for every seed within 2 units in the last place of the true value, on
// the range that each function states; the hardware's are within 1.1.

// An estimate of 1 / divisor, as it multiplies a last correction. If the divisor's mantissa is all ones, the quotient lies
// so close to the middle of two floats that the larger of them is needed to tell the side.
__device__ __forceinline__ float decisive(float estimate, float divisor) {
  const unsigned int last = (__float_as_uint(divisor) & 0x7fffffu) == 0x7fffffu;
  return __uint_as_float(__float_as_uint(estimate) | last);
}

// 1 / (1 + e) for e >= +0, Inf and NaN too; `seed` is near 1 / ((1 + e) / 4), a normal number for every finite e.
__device__ __forceinline__ float reciprocal_from_seed(float e, float seed) {
  const float divisor = 1.0f + e, quarter = fmaf(e, 0.25f, 0.25f);
  const float reciprocal = fmaf(seed, fmaf(-quarter, seed, 1.0f), seed);
  const float near = reciprocal * 0.25f;  // rounded, if it is subnormal
  const float error = fmaf(-divisor, near, 1.0f);
  const float result = fmaf(error * 0.25f, decisive(reciprocal, divisor), near);
  return divisor > 0x1.fffffep+127f ? 0.0f : result;
}

// 1 / sqrt(v), the root and the quotient rounded, for 2^-100 <= v <= 2^126; `seed` is near 1 / sqrt(v).
__device__ __forceinline__ float inverse_root_from_seed(float v, float seed) {
  float root = v * seed, half = 0.5f * seed;
  const float slack = fmaf(-half, root, 0.5f);
  root = fmaf(root, slack, root);
  half = fmaf(half, slack, half);
  root = fmaf(fmaf(-root, root, v), half, root);
  float inverse = half + half;
  inverse = fmaf(inverse, fmaf(-root, inverse, 1.0f), inverse);
  return fmaf(fmaf(-root, inverse, 1.0f), decisive(inverse, root), inverse);
}

// a / N for a >= 2^-84, and something below 2^-95 for smaller a; `INVERSE` is 1 / N, rounded.
template <int N>
__device__ __forceinline__ float quotient_by(float a) {
  constexpr float INVERSE = 1.0f / N;
  const float near = a * INVERSE;
  return fmaf(fmaf(-near, static_cast<float>(N), a), INVERSE, near);
}

__device__ __forceinline__ float seeded_sigmoid(float x) {
#ifdef __CUDA_ARCH__
  const float e = exponential(-x);
  float seed;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(seed) : "f"(fmaf(e, 0.25f, 0.25f)));
  return reciprocal_from_seed(e, seed);
#else
  return sigmoid(x);
#endif
}

// 1 / sqrt(sum / N + EPSILON) for sum >= 0, Inf and NaN too. EPSILON is at least 2^-70: what a tiny sum's quotient is
// off by vanishes beside it.
template <int N>
__device__ __forceinline__ float seeded_inverse_rms(float sum, float epsilon) {
#ifdef __CUDA_ARCH__
  const float v = quotient_by<N>(sum) + epsilon;
  float seed;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(seed) : "f"(v));
  const float result = inverse_root_from_seed(v, seed);
  return sum > 0x1.fffffep+127f ? 0.0f : result;
#else
  return divide(1.0f, square_root(divide(sum, static_cast<float>(N)) + epsilon));
#endif
}

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

// The sums of ROWS rows over a warp, all at once: at every distance a lane goes on with one of two rows and gives the
// other to its partner, so that the rows halve while the distance does. What is added, and when, is what a butterfly of
// each row adds: value[lane] + value[lane ^ distance]. In the end sum[0] of a lane is that of row `row_of(lane)`, where
// there is such a row.
template <int ROWS, int DISTANCE = 16>
__device__ __forceinline__ void warp_sums(float* sum, int lane) {
  const bool upper = (lane & DISTANCE) != 0;
#pragma unroll
  for (int i = 0; i < ROWS / 2; ++i) {
    const float kept = upper ? sum[2 * i + 1] : sum[2 * i], given = upper ? sum[2 * i] : sum[2 * i + 1];
    sum[i] = kept + __shfl_xor_sync(0xffffffffu, given, DISTANCE);
  }
  if (ROWS % 2 == 1) sum[ROWS / 2] = sum[ROWS - 1] + __shfl_xor_sync(0xffffffffu, sum[ROWS - 1], DISTANCE);
  if constexpr (DISTANCE > 1) warp_sums<(ROWS + 1) / 2, DISTANCE / 2>(sum, lane);
}

// A lane's bits in reverse: the row of a lane, and the lane of a row.
__device__ __forceinline__ int row_of(int lane) {
  return (lane & 1) << 4 | (lane & 2) << 2 | (lane & 4) | (lane & 8) >> 2 | (lane & 16) >> 4;
}

__device__ __forceinline__ float from_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

// ---- prelude: moving data, waiting ----

// Moving N consecutive elements with words of BYTES bytes; the addresses are multiples of BYTES.
template <int BYTES> struct Word;
template <> struct Word<2> { using type = unsigned short; };
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

// Has values computed by now. The compiler would compute them where they are used, behind a wait; a use in front of it
// that it can't see through stops that. `sink` is written if the bits happen to cancel, and means nothing.
template <int N>
__device__ __forceinline__ void keep(const float (&values)[N], unsigned int* sink) {
#ifdef __CUDA_ARCH__
  unsigned int bits = 0x9e3779b9u;
#pragma unroll
  for (int i = 0; i < N; ++i) bits ^= __float_as_uint(values[i]);
  if (bits == 0) *sink = bits;
#else
  (void)values, (void)sink;
#endif
}

// Barriers of some warps of a CTA, by number; `threads` counts all that arrive, those too that don't wait.
__device__ __forceinline__ void meet_at(int barrier, int threads) {
#ifdef __CUDA_ARCH__
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#else
  kernwright::emulator::barrier_sync(barrier, threads);
#endif
}
__device__ __forceinline__ void arrive_at(int barrier, int threads) {
#ifdef __CUDA_ARCH__
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
#else
  kernwright::emulator::barrier_arrive(barrier, threads);
#endif
}

// Bulk copies into shared memory, whose arrival an mbarrier of one phase counts in bytes. Addresses and sizes are
// multiples of 16 bytes.
using arrival_t = unsigned long long;

// Complete when so many threads have announced bytes or arrived, and the bytes are there.
__device__ __forceinline__ void initialise_arrival(arrival_t* arrival, unsigned int threads) {
#ifdef __CUDA_ARCH__
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(threads) : "memory");
#else
  kernwright::emulator::mbarrier_initialise(reinterpret_cast<std::uint64_t*>(arrival), threads);
#endif
}

// What was initialised is there for the copies that follow; a barrier of the CTA makes it so for its threads.
__device__ __forceinline__ void fence_initialised_arrivals() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
  kernwright::emulator::fence_mbarrier_init();
#endif
}

__device__ __forceinline__ void announce(arrival_t* arrival, unsigned int bytes) {
#ifdef __CUDA_ARCH__
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
#else
  kernwright::emulator::mbarrier_arrive_expect_tx(reinterpret_cast<std::uint64_t*>(arrival), bytes);
#endif
}

// What the thread has written before is there for those who wait.
__device__ __forceinline__ void arrive(arrival_t* arrival) {
#ifdef __CUDA_ARCH__
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
#else
  kernwright::emulator::mbarrier_arrive_one(reinterpret_cast<std::uint64_t*>(arrival));
#endif
}

__device__ __forceinline__ void wait_for_arrival(arrival_t* arrival) {
#ifdef __CUDA_ARCH__
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
  unsigned int arrived;
  do {
    asm volatile(
        "{ .reg .pred arrived; mbarrier.try_wait.parity.shared::cta.b64 arrived, [%1], 0; selp.u32 %0, 1, 0, arrived; }"
        : "=r"(arrived) : "r"(address) : "memory");
  } while (!arrived);
#else
  kernwright::emulator::mbarrier_wait_parity(reinterpret_cast<std::uint64_t*>(arrival), 0);
#endif
}

// Weights are read once a call: they are the first to leave the L2 cache.
__device__ __forceinline__ void copy_to_shared(void* shared, const void* global, unsigned int bytes, arrival_t* arrival) {
#ifdef __CUDA_ARCH__
  const unsigned int to = static_cast<unsigned int>(__cvta_generic_to_shared(shared));
  const unsigned int address = static_cast<unsigned int>(__cvta_generic_to_shared(arrival));
  unsigned long long policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
      ::"r"(to), "l"(global), "r"(bytes), "r"(address), "l"(policy) : "memory");
#else
  kernwright::emulator::cp_async_bulk_to_shared(shared, global, bytes, reinterpret_cast<std::uint64_t*>(arrival));
#endif
}

// Programmatic dependent launch. The kernel behind this one may begin as soon as every CTA has said so.
__device__ __forceinline__ void launch_dependents() {
#ifdef __CUDA_ARCH__
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#else
  kernwright::emulator::griddepcontrol_launch_dependents();
#endif
}

// Returns when the grid in front has ended and what it wrote is there for this thread: it comes before the first read
// of anything that isn't a weight, and before the first write.
__device__ __forceinline__ void wait_for_previous_grid() {
#ifdef __CUDA_ARCH__
  asm volatile("griddepcontrol.wait;" ::: "memory");
#else
  kernwright::emulator::griddepcontrol_wait();
#endif
}

// What the grid in front has written is read past the L1 cache: that may hold it as it was before, because this grid's
// CTAs began earlier than it was written.
template <typename T>
__device__ __forceinline__ T fresh(const T* source) { return __ldcg(source); }

template <int BYTES, int N>
__device__ __forceinline__ Elements<N> load_fresh(const storage_t* source) {
  using word_t = typename Word<BYTES>::type;
  Elements<N> elements;
#pragma unroll
  for (int i = 0; i < N * 2 / BYTES; ++i)
    reinterpret_cast<word_t*>(elements.value)[i] = fresh(reinterpret_cast<const word_t*>(source) + i);
  return elements;
}

// ---- prelude: atomics, time ----

// A counter that orders what was written before it; order and scope stand in the name.
__device__ __forceinline__ unsigned int fetch_add_device(unsigned int* counter, unsigned int value) {
  return __nv_atomic_fetch_add(counter, value, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}

// Tagged words: data and its generation travel in one store, so that the data is its own flag.
__device__ __forceinline__ void store_tagged_device(unsigned long long* word, unsigned long long value) {
  __nv_atomic_store_n(word, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

// A word that only ever says that something has happened; it orders nothing.
__device__ __forceinline__ unsigned int load_relaxed_device(const unsigned int* word) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(word), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
// A counter whose value tells whether another CTA arrived first; it orders nothing.
__device__ __forceinline__ unsigned int fetch_add_relaxed_device(unsigned int* counter, unsigned int value) {
  return __nv_atomic_fetch_add(counter, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}

// Tagged words: an FP32 payload in the low half, the generation of its call in the high one. Whoever finds the
// generation has the payload, so that no fence or flag is needed.
__device__ __forceinline__ unsigned long long tagged(float payload, unsigned int generation) {
  return static_cast<unsigned long long>(generation) << 32 | __float_as_uint(payload);
}

// Two words travel in one load; each has its own tag, because only the halves are sure to arrive whole.
constexpr int WORDS_PER_LOAD = 2;
struct Tagged { uint4 bits; };
__device__ __forceinline__ Tagged load_words(const unsigned long long* words) {
  Tagged value;
  __nv_atomic_load(reinterpret_cast<uint4*>(const_cast<unsigned long long*>(words)), &value.bits, __NV_ATOMIC_RELAXED,
                   __NV_THREAD_SCOPE_DEVICE);
  return value;
}
__device__ __forceinline__ bool complete(const Tagged& value, unsigned int generation) {
  return value.bits.y == generation && value.bits.w == generation;
}
__device__ __forceinline__ unsigned int tag(const Tagged& value, int word) { return word == 0 ? value.bits.y : value.bits.w; }
__device__ __forceinline__ float payload(const Tagged& value, int word) {
  return __uint_as_float(word == 0 ? value.bits.x : value.bits.z);
}
__device__ __forceinline__ Tagged poisoned_words() { return Tagged{uint4{0x7fffffffu, 0u, 0x7fffffffu, 0u}}; }

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

constexpr int BRANCHES = 4, HIDDEN = 2560, LOW_RANK = 320;
constexpr int STATE = BRANCHES * HIDDEN;
constexpr int ALL_ROWS = LOW_RANK + BRANCHES;  // of down: the low rank, then the injections
constexpr float EPSILON = 0x1.0c6f7ap-20f /* 1e-06 */;

// A power of two: the product is exact, so it equals the division.
__device__ __forceinline__ float over_branches(float value) { return value * 0x1p-2f /* 0.25 */; }
__device__ __forceinline__ float gate_of(float x) { return seeded_sigmoid(x); }
__device__ __forceinline__ float inverse_rms(float sum) {
  return seeded_inverse_rms<HIDDEN>(sum, EPSILON);
}
// Weight of a branch's injection: 2 * sigmoid(injection / HC).
__device__ __forceinline__ float injection_scale(storage_t injection) {
  return 2.0f * gate_of(over_branches(to_float(injection)));
}
__device__ __forceinline__ storage_t combined(storage_t residual, storage_t block, float scale) {
  return to_storage(fmaf(to_float(block), scale, to_float(residual)));
}
__device__ __forceinline__ storage_t normalised(storage_t x, float weight, float scale) {
  const float scaled = to_float(x) * scale;
  return to_storage(fmaf(scaled, weight, scaled));
}
// SiLU of the rounded row over HC.
__device__ __forceinline__ storage_t low_rank_of(float total) {
  const float t = over_branches(rounded(total));
  return to_storage(t * gate_of(t));
}

// ---- the weights' way into shared memory ----

// One lane issues the copies, 520 cycles apart: all at once, they would stand in front of what the kernel
// before this one is waiting for.
extern __shared__ __align__(128) unsigned char staged[];

__device__ __forceinline__ void keep_pace(long long& last) {
  while (clock64() - last < 520) {
  }
  last = clock64();
}

// A row's sums over the branches, the segments of down's tree, in their order.
__device__ __forceinline__ float sum_of(const float (&branches)[BRANCHES]) { return ordered_sum<BRANCHES>(branches); }

// ---- combine, norm and down: a CTA takes some rows over the columns of one branch, tree [4, 320, 8] ----

namespace down {
constexpr int CTAS = 132, CTAS_PER_BRANCH = 33;
constexpr int LANES = 320, CHUNK = 8, GROUPS = 10;  // a thread normalises a chunk, and multiplies it
constexpr int TEAMS = 1, COMPUTERS = TEAMS * LANES;  // threads that compute; a team takes every 1. row
constexpr int ROWS_PER_CTA = 10, ROWS_AT_ONCE = 10;
constexpr int STORED_CHUNKS = 10;  // of x, by each of a branch's CTAs
constexpr int WEIGHT_AT = 0, NORM_AT = 51200;

__device__ __forceinline__ storage_t* weight_row(int row) {
  return reinterpret_cast<storage_t*>(staged + WEIGHT_AT) + row * HIDDEN;
}
__device__ __forceinline__ storage_t* norm_weight() { return reinterpret_cast<storage_t*>(staged + NORM_AT); }

// Rows of a CTA, of all ROWS; the last of a branch may have fewer, or none.
template <int ROWS>
__device__ __forceinline__ int rows_of(int first_row) {
  const int left = ROWS - first_row;
  return left < 0 ? 0 : left < ROWS_PER_CTA ? left : ROWS_PER_CTA;
}

// A thread's columns of the rows that it multiplies at once.
struct Weights {
  Elements<CHUNK> stored[ROWS_AT_ONCE];
  float converted[3 * CHUNK];
};

__device__ __forceinline__ void take(Weights& weights, int first, int team, int member, unsigned int* sink) {
#pragma unroll
  for (int i = 0; i < ROWS_AT_ONCE; ++i)
    weights.stored[i] = load<16, CHUNK>(weight_row((first + i) * TEAMS + team) + member * CHUNK);
  // Some are converted while there is nothing else to do.
#pragma unroll
  for (int i = 0; i < 3; ++i)
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) weights.converted[i * CHUNK + e] = to_float(weights.stored[i].value[e]);
  keep(weights.converted, sink);
}

// Sums of the rows over the chunks of a warp; see `warp_sums` for whose they are.
__device__ __forceinline__ float multiply(const Weights& weights, const float (&y)[CHUNK], int lane) {
  float sum[ROWS_AT_ONCE] = {};
#pragma unroll
  for (int e = 0; e < CHUNK; ++e)
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i)
      sum[i] = fmaf(y[e], i < 3 ? weights.converted[i * CHUNK + e] : to_float(weights.stored[i].value[e]), sum[i]);
  warp_sums<ROWS_AT_ONCE>(sum, lane);
  return sum[0];
}

// Sums of squares of a team's warps, and of its rows' products.
struct Shared {
  float square[TEAMS][GROUPS];
  float partial[ROWS_PER_CTA][GROUPS];
  unsigned int sink;
};

// The branch's 1 / rms, from the chunk of x that a thread has. A barrier of the team.
__device__ __forceinline__ float norm_scale(Shared& shared, const Elements<CHUNK>& x, int team, int member) {
  float square = 0.0f;
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) {
    const float value = to_float(x.value[e]);
    square = fmaf(value, value, square);
  }
  square = butterfly_sum<32>(square);
  if (member % 32 == 0) shared.square[team][member / 32] = square;
  meet_at(1 + team, LANES);
  return inverse_rms(ordered_sum<GROUPS>(shared.square[team]));
}

__device__ __forceinline__ Elements<CHUNK> normalised_chunk(const Elements<CHUNK>& x, float scale, int member) {
  const Elements<CHUNK> weight = load<16, CHUNK>(norm_weight() + member * CHUNK);
  Elements<CHUNK> y;
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) y.value[e] = normalised(x.value[e], to_float(weight.value[e]), scale);
  return y;
}

// All rows of the CTA: what each warp has of them goes to shared memory.
__device__ __forceinline__ void multiply_rows(Shared& shared, Weights& weights, const Elements<CHUNK>& stored_y, int team,
                                              int member) {
  float y[CHUNK];
#pragma unroll
  for (int e = 0; e < CHUNK; ++e) y[e] = to_float(stored_y.value[e]);
  const int lane = member % 32, group = member / 32;
  const float sum = multiply(weights, y, lane);
  if (row_of(lane) < ROWS_AT_ONCE) shared.partial[row_of(lane) * TEAMS + team][group] = sum;
}

// Issues the copies of the norm's weight and of the rows.
template <int ROWS>
__device__ __forceinline__ void prefetch(arrival_t* arrival, const storage_t* norm, const storage_t* weight, int branch,
                                         int first_row, long long& last) {
  const int rows = rows_of<ROWS>(first_row);
  announce(arrival, (rows + 1) * HIDDEN * 2);
  copy_to_shared(norm_weight(), norm + branch * HIDDEN, HIDDEN * 2, arrival);
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    keep_pace(last);
    copy_to_shared(weight_row(row), weight + (first_row + row) * STATE + branch * HIDDEN, HIDDEN * 2, arrival);
  }
}
}  // namespace down

// ---- up and mix: a CTA takes some hidden coordinates of all branches, a warp some of them; tree [1, 32, 2] ----

namespace up {
constexpr int CTAS = 128;
constexpr int CHUNK = 2, STEPS = 5;
constexpr int COLUMNS_PER_CTA = 20, COLUMNS_PER_WARP = 2;  // columns: hidden coordinates
constexpr int COLUMNS_AT_ONCE = 2, ROWS_AT_ONCE = COLUMNS_AT_ONCE * BRANCHES;
constexpr int COPIES = 2, COLUMNS_PER_COPY = COLUMNS_PER_CTA / COPIES;  // of each branch
constexpr int WEIGHT_AT = 56320;

__device__ __forceinline__ storage_t* weight_row(int branch, int column) {
  return reinterpret_cast<storage_t*>(staged + WEIGHT_AT) + (branch * COLUMNS_PER_CTA + column) * LOW_RANK;
}

// What a lane has of the rows that its warp multiplies at once: row i is branch i % HC of column i / HC.
struct Weights {
  Elements<CHUNK> stored[STEPS][ROWS_AT_ONCE];
  float converted[20 * CHUNK];  // the first chunks, step after step
};

__device__ __forceinline__ void take(Weights& weights, int column, int lane, unsigned int* sink) {
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
#pragma unroll
    for (int i = 0; i < ROWS_AT_ONCE; ++i)
      weights.stored[step][i] = load<CHUNK * 2, CHUNK>(weight_row(i % BRANCHES, column + i / BRANCHES) +
                                                       (step * 32 + lane) * CHUNK);
  // Some are converted while the low rank is on its way.
#pragma unroll
  for (int chunk = 0; chunk < 20; ++chunk)
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
      weights.converted[chunk * CHUNK + e] = to_float(weights.stored[chunk / ROWS_AT_ONCE][chunk % ROWS_AT_ONCE].value[e]);
  keep(weights.converted, sink);
}

// A lane's share of the low rank.
struct Input { float value[STEPS][CHUNK]; };
__device__ __forceinline__ Input input_of(const float* lora, int lane) {
  Input input;
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
#pragma unroll
    for (int e = 0; e < CHUNK; ++e) input.value[step][e] = lora[(step * 32 + lane) * CHUNK + e];
  return input;
}

// The gate of row `row_of(lane)`.
__device__ __forceinline__ float multiply(const Weights& weights, const Input& input, int lane) {
  float sum[ROWS_AT_ONCE] = {};
#pragma unroll
  for (int step = 0; step < STEPS; ++step)
#pragma unroll
    for (int e = 0; e < CHUNK; ++e)
#pragma unroll
      for (int i = 0; i < ROWS_AT_ONCE; ++i)
        sum[i] = fmaf(input.value[step][e],
                      step * ROWS_AT_ONCE + i < 20 ? weights.converted[(step * ROWS_AT_ONCE + i) * CHUNK + e]
                          : to_float(weights.stored[step][i].value[e]),
                      sum[i]);
  warp_sums<ROWS_AT_ONCE>(sum, lane);
  return gate_of(rounded(sum[0]));  // rounded although it never leaves a register
}

// The gates of the column that a lane mixes, from the lanes that have them.
struct Gates { float of[BRANCHES]; };
__device__ __forceinline__ Gates gather(float gate, int lane) {
  Gates gates;
#pragma unroll
  for (int branch = 0; branch < BRANCHES; ++branch)
    gates.of[branch] = from_lane(gate, row_of((row_of(lane) + branch) & 31));
  return gates;
}
// Of the lanes that have a column's gates, the one of branch 0 mixes it.
__device__ __forceinline__ bool mixes(int lane) { return row_of(lane) < ROWS_AT_ONCE && row_of(lane) % BRANCHES == 0; }

// Issues the copies of the CTA's rows.
__device__ __forceinline__ void prefetch(arrival_t* arrival, const storage_t* weight, int first_column, long long& last) {
  constexpr unsigned int BYTES = COLUMNS_PER_COPY * LOW_RANK * 2;
  announce(arrival, BRANCHES * COPIES * BYTES);
#pragma unroll 1
  for (int copy = 0; copy < BRANCHES * COPIES; ++copy) {
    const int branch = copy / COPIES, column = copy % COPIES * COLUMNS_PER_COPY;
    keep_pace(last);
    copy_to_shared(weight_row(branch, column), weight + (branch * HIDDEN + first_column + column) * LOW_RANK, BYTES, arrival);
  }
}
}  // namespace up

// ---- the exchange: every row's sums of the branches, then each branch's 1 / rms, as tagged words ----
// One word a value suffices: the next call writes them only when this grid has ended.

struct Exchange {
  unsigned long long* words;
  unsigned int* generations;  // of each CTA, counted by the CTA itself, so that graph replay counts them
  unsigned int* record;       // of the first failure: count, CTA, row, branch, expected and seen generation
};

// One call, as a CTA sees it: the tag that it waits for is its generation, with a salt in the bits from 16 on.
struct Call { unsigned int tag, timeout; };
constexpr unsigned int NEVER = 0x80000000u;  // is in no word's tag
__device__ __forceinline__ unsigned int tag_of_words(const Call& call) { return call.tag & ~NEVER; }

// Two calls that overlap on one state may count the same generation, or two that cross over from one CTA to the next.
// They don't take each other's words, because they write to different outputs; if they didn't, they'd lose them anyway.
__device__ __forceinline__ unsigned int salt_of(const void* outputs) {
  return static_cast<unsigned int>(reinterpret_cast<unsigned long long>(outputs) >> 4) * 2654435761u & 0x7fff0000u;
}

// Time in units of 1024 ns: 32 bits last for an hour, and take one register.
__device__ __forceinline__ unsigned int ticks_of(unsigned long long ns) { return static_cast<unsigned int>(ns >> 10); }

// By a whole warp. Generations count calls modulo 2^32, the first is 1: every call that a CTA begins has one of its own.
// After a failure no CTA waits until the record is cleared: the calls of a graph would all wait in vain. Nor does any take
// what is there, because the CTAs' counts may differ, and then old words look like new ones.
__device__ __forceinline__ Call begin(const Exchange& exchange, unsigned int salt, unsigned long long timeout_ns, int lane) {
  const unsigned int failures = load_relaxed_device(exchange.record);
  unsigned int last = 0;
  if (lane == 0) last = fetch_add_relaxed_device(exchange.generations + blockIdx.x, 1);
  last = __shfl_sync(0xffffffffu, last, 0);
  const unsigned int tag = ((last + 1) ^ salt) & ~NEVER;
  return failures == 0 ? Call{tag, ticks_of(timeout_ns)} : Call{tag | NEVER, 0};
}

// The scales stand behind the rows, like one row more.
constexpr int SCALES = ALL_ROWS;
// What a warp's lanes load at once lies side by side: planes of the words of WORDS_PER_LOAD branches, each begun on a
// cache line of its own. With all words of a row together, every load would fetch twice the sectors that it needs.
constexpr int PLANE = (ALL_ROWS + 1 + 7) / 8 * 8;
__device__ __forceinline__ unsigned long long* words_of(const Exchange& exchange, int row, int load) {
  return exchange.words + row * WORDS_PER_LOAD + load * (PLANE * WORDS_PER_LOAD);
}
__device__ __forceinline__ unsigned long long* word_of(const Exchange& exchange, int row, int branch) {
  return words_of(exchange, row, branch / WORDS_PER_LOAD) + branch % WORDS_PER_LOAD;
}

// What the CTAs of all branches have of a row; NaN where one doesn't come in time.
struct Partials { float of[BRANCHES]; };
constexpr int LOADS = BRANCHES / WORDS_PER_LOAD;
struct Arrived { Tagged words[LOADS]; };

__device__ __forceinline__ Arrived load_row(const Exchange& exchange, int row) {
  Arrived arrived;
#pragma unroll
  for (int i = 0; i < LOADS; ++i) arrived.words[i] = load_words(words_of(exchange, row, i));
  return arrived;
}
__device__ __forceinline__ bool all_complete(const Arrived& arrived, unsigned int expected) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < LOADS; ++i) all = complete(arrived.words[i], expected) && all;
  return all;
}

__device__ __forceinline__ Partials partials_of(const Arrived& arrived) {
  Partials partials;
#pragma unroll
  for (int i = 0; i < BRANCHES; ++i) partials.of[i] = payload(arrived.words[i / WORDS_PER_LOAD], i % WORDS_PER_LOAD);
  return partials;
}

// Writes the error record; the first failure counts.
__device__ void report(const Exchange& exchange, const Call& call, int row, const Arrived& arrived) {
  if (fetch_add_device(exchange.record, 1) != 0) return;
  const unsigned int generation = fresh(exchange.generations + blockIdx.x);
  exchange.record[1] = blockIdx.x;
  exchange.record[2] = row;
  exchange.record[4] = generation;
#pragma unroll
  for (int branch = BRANCHES - 1; branch >= 0; --branch) {
    const unsigned int seen = tag(arrived.words[branch / WORDS_PER_LOAD], branch % WORDS_PER_LOAD);
    if (seen == call.tag) continue;
    exchange.record[3] = branch;
    exchange.record[5] = (generation & 0xffff0000u) | (seen & 0xffffu);  // without a salt
  }
}

__device__ __forceinline__ Partials await(const Exchange& exchange, const Call& call, int row) {
  Arrived arrived = load_row(exchange, row);
  if (!all_complete(arrived, call.tag)) {
    const unsigned int began = ticks_of(nanoseconds());
    do {
      arrived = load_row(exchange, row);
      if (ticks_of(nanoseconds()) - began > call.timeout && !all_complete(arrived, call.tag)) {
        report(exchange, call, row, arrived);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) arrived.words[i] = poisoned_words();
        break;
      }
    } while (!all_complete(arrived, call.tag));
  }
  return partials_of(arrived);
}
// One lane waits for its row before all look, and wait for what is then still missing: fewer loads stand in each
// other's way.
__device__ __forceinline__ Partials await_in_turn(const Exchange& exchange, const Call& call, int row, bool first) {
  if (first) await(exchange, call, row);
  __syncwarp();
  return await(exchange, call, row);
}
// The SM's clock; differences of up to 2^32 cycles are right.
__device__ __forceinline__ unsigned int cycles() { return static_cast<unsigned int>(clock64()); }

// All lanes look once, 1100 cycles after the CTA's own sums were ready: where all rows have come by then, one round
// trip is enough. Earlier looks would stand in the way of the words themselves.
__device__ __forceinline__ Partials await_after(const Exchange& exchange, const Call& call, int row, int lane,
                                                unsigned int summed) {
  while (cycles() - summed < 1100) {
  }
  const Arrived arrived = load_row(exchange, row);
  const unsigned int missing = __ballot_sync(0xffffffffu, !all_complete(arrived, call.tag));
  if (missing == 0) return partials_of(arrived);
  return await_in_turn(exchange, call, row, lane == __ffs(missing) - 1);
}

// ---- the kernels ----

constexpr int THREADS = down::COMPUTERS + 64, CTAS_PER_SM = 2;
constexpr int FINISHER = down::COMPUTERS / 32, PRODUCER = FINISHER + 1;  // warps
// Barriers: 1 and up are the teams' own; then that of the rows' sums, and that of low rank and y.
constexpr int SUMMED = down::TEAMS + 1, MIXABLE = down::TEAMS + 2;
constexpr int MIXED = BRANCHES * up::COLUMNS_PER_CTA, MIX_STEPS = (MIXED + 31) / 32;  // values of y; of a lane of the finisher

struct alignas(16) Shared {
  float lora[LOW_RANK];
  float y[BRANCHES][up::COLUMNS_PER_CTA];
  unsigned int sink;
  down::Shared down;
  float scale;  // 1 / rms of the CTA's branch
  Call call;
  arrival_t down_arrived, up_arrived;  // the call arrives with up's weights
};
static_assert(MIXABLE < 16, "a CTA has 16 barriers");

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
hyper_connection_boundary_one_kernel(const storage_t* residual, const storage_t* block, const storage_t* injection,
    const storage_t* __restrict__ norm_weight, const storage_t* __restrict__ down_weight,
    const storage_t* __restrict__ up_weight, storage_t* __restrict__ x_out,
    storage_t* __restrict__ block_input, storage_t* __restrict__ injection_out,
    unsigned long long* exchange_words, unsigned int* generations, unsigned int* record,
    unsigned long long timeout_ns) {
  __shared__ Shared shared;
  launch_dependents();
  const Exchange exchange{exchange_words, generations, record};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int branch = blockIdx.x / down::CTAS_PER_BRANCH, place = blockIdx.x % down::CTAS_PER_BRANCH;
  const int first_row = place * down::ROWS_PER_CTA, first_column = blockIdx.x * up::COLUMNS_PER_CTA;
  const bool mixes = blockIdx.x < up::CTAS;
  if (threadIdx.x == 0) {
    initialise_arrival(&shared.down_arrived, 1);
    initialise_arrival(&shared.up_arrived, 2);
    fence_initialised_arrivals();
  }
  __syncthreads();

  if (warp == PRODUCER) {
    if (lane != 0) return;
    long long last = clock64();
    down::prefetch<ALL_ROWS>(&shared.down_arrived, norm_weight, down_weight, branch, first_row, last);
    if (mixes) up::prefetch(&shared.up_arrived, up_weight, first_column, last);
    return;
  }

  if (warp == FINISHER) {
    // The values of y that are mixed here: value i * 32 + lane of branch after branch.
    int of[MIX_STEPS], column[MIX_STEPS];
    float weight[MIX_STEPS];
#pragma unroll
    for (int i = 0; i < MIX_STEPS; ++i) {
      const int value = i * 32 + lane < MIXED ? i * 32 + lane : 0;  // lanes without one take the first
      of[i] = value / up::COLUMNS_PER_CTA;
      column[i] = mixes ? first_column + value % up::COLUMNS_PER_CTA : 0;
      weight[i] = to_float(norm_weight[of[i] * HIDDEN + column[i]]);
    }
    keep(weight, &shared.sink);
    wait_for_previous_grid();
    const Call call = begin(exchange, salt_of(block_input), timeout_ns, lane);
    // All loads are on their way before the first is looked at, which comes after the rows.
    storage_t x[MIX_STEPS], added[MIX_STEPS];
#pragma unroll
    for (int i = 0; i < MIX_STEPS; ++i) {
      x[i] = load_fresh<2, 1>(residual + of[i] * HIDDEN + column[i]).value[0];
      added[i] = load_fresh<2, 1>(block + column[i]).value[0];
    }
    const storage_t injected = load_fresh<2, 1>(injection + lane % BRANCHES).value[0];
    if (lane == 0) {
      shared.call = call;
      arrive(&shared.up_arrived);
    }

    meet_at(SUMMED, down::COMPUTERS + 32);
    for (int row = lane; row < down::rows_of<ALL_ROWS>(first_row); row += 32)
      store_tagged_device(word_of(exchange, first_row + row, branch),
                          tagged(ordered_sum<down::GROUPS>(shared.down.partial[row]), tag_of_words(call)));
    if (place == 0 && lane == 0)
      store_tagged_device(word_of(exchange, SCALES, branch), tagged(shared.scale, tag_of_words(call)));

    if (mixes) {
      const float injection_of_lane = injection_scale(injected);
      const Partials scales = await(exchange, call, SCALES);
      float scale_of_lane = scales.of[0];
#pragma unroll
      for (int i = 1; i < BRANCHES; ++i) scale_of_lane = lane == i ? scales.of[i] : scale_of_lane;
#pragma unroll
      for (int i = 0; i < MIX_STEPS; ++i) {
        x[i] = combined(x[i], added[i], from_lane(injection_of_lane, of[i]));
        const float scale = from_lane(scale_of_lane, of[i]);
        if (i * 32 + lane < MIXED) shared.y[of[i]][column[i] - first_column] = to_float(normalised(x[i], weight[i], scale));
      }
      arrive_at(MIXABLE, down::COMPUTERS + 32);
    }
    // The rows behind the low rank are the raw injection logits of the next boundary.
    if (blockIdx.x == down::CTAS - 1 && lane < BRANCHES)
      injection_out[lane] = to_storage(sum_of(await(exchange, call, LOW_RANK + lane).of));
    return;
  }

  constexpr int team = 0;
  const int member = threadIdx.x;
  wait_for_arrival(&shared.down_arrived);
  down::Weights rows;
  down::take(rows, 0, team, member, &shared.down.sink);
  wait_for_previous_grid();
  const int k = branch * HIDDEN + member * down::CHUNK;
  Elements<down::CHUNK> x = load_fresh<16, down::CHUNK>(residual + k);
  const Elements<down::CHUNK> added = load_fresh<16, down::CHUNK>(block + member * down::CHUNK);
  const float weight = injection_scale(load_fresh<2, 1>(injection + branch).value[0]);
#pragma unroll
  for (int e = 0; e < down::CHUNK; ++e) x.value[e] = combined(x.value[e], added.value[e], weight);

  if (member / down::STORED_CHUNKS == place) store<16>(x_out + k, x);
  const float scale = down::norm_scale(shared.down, x, team, member);
  if (threadIdx.x == 0) shared.scale = scale;
  down::multiply_rows(shared.down, rows, down::normalised_chunk(x, scale, member), team, member);
  arrive_at(SUMMED, down::COMPUTERS + 32);
  const unsigned int summed = cycles();
  if (!mixes) return;

  const int column = warp * up::COLUMNS_PER_WARP;
  wait_for_arrival(&shared.up_arrived);
  up::Weights columns;
  up::take(columns, column, lane, &shared.sink);
  const int row = threadIdx.x;
  shared.lora[row] = to_float(low_rank_of(sum_of(await_after(exchange, shared.call, row, lane, summed).of)));
  meet_at(MIXABLE, down::COMPUTERS + 32);
  const up::Input input = up::input_of(shared.lora, lane);
  const up::Gates gates = up::gather(up::multiply(columns, input, lane), lane);
  if (up::mixes(lane)) {
    const int mixed_column = column + row_of(lane) / BRANCHES;
    float mixed = 0.0f;
#pragma unroll
    for (int i = 0; i < BRANCHES; ++i) mixed = fmaf(gates.of[i], shared.y[i][mixed_column], mixed);
    block_input[first_column + mixed_column] = to_storage(over_branches(mixed));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
hyper_connection_first_one_kernel(const storage_t* residual,
    const storage_t* __restrict__ norm_weight, const storage_t* __restrict__ down_weight,
    const storage_t* __restrict__ up_weight,
    storage_t* __restrict__ block_input, storage_t* __restrict__ injection_out,
    unsigned long long* exchange_words, unsigned int* generations, unsigned int* record,
    unsigned long long timeout_ns) {
  __shared__ Shared shared;
  launch_dependents();
  const Exchange exchange{exchange_words, generations, record};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int branch = blockIdx.x / down::CTAS_PER_BRANCH, place = blockIdx.x % down::CTAS_PER_BRANCH;
  const int first_row = place * down::ROWS_PER_CTA, first_column = blockIdx.x * up::COLUMNS_PER_CTA;
  const bool mixes = blockIdx.x < up::CTAS;
  if (threadIdx.x == 0) {
    initialise_arrival(&shared.down_arrived, 1);
    initialise_arrival(&shared.up_arrived, 2);
    fence_initialised_arrivals();
  }
  __syncthreads();

  if (warp == PRODUCER) {
    if (lane != 0) return;
    long long last = clock64();
    down::prefetch<ALL_ROWS>(&shared.down_arrived, norm_weight, down_weight, branch, first_row, last);
    if (mixes) up::prefetch(&shared.up_arrived, up_weight, first_column, last);
    return;
  }

  if (warp == FINISHER) {
    // The values of y that are mixed here: value i * 32 + lane of branch after branch.
    int of[MIX_STEPS], column[MIX_STEPS];
    float weight[MIX_STEPS];
#pragma unroll
    for (int i = 0; i < MIX_STEPS; ++i) {
      const int value = i * 32 + lane < MIXED ? i * 32 + lane : 0;  // lanes without one take the first
      of[i] = value / up::COLUMNS_PER_CTA;
      column[i] = mixes ? first_column + value % up::COLUMNS_PER_CTA : 0;
      weight[i] = to_float(norm_weight[of[i] * HIDDEN + column[i]]);
    }
    keep(weight, &shared.sink);
    wait_for_previous_grid();
    const Call call = begin(exchange, salt_of(block_input), timeout_ns, lane);
    // All loads are on their way before the first is looked at, which comes after the rows.
    storage_t x[MIX_STEPS];
#pragma unroll
    for (int i = 0; i < MIX_STEPS; ++i) {
      x[i] = load_fresh<2, 1>(residual + of[i] * HIDDEN + column[i]).value[0];
    }
    if (lane == 0) {
      shared.call = call;
      arrive(&shared.up_arrived);
    }

    meet_at(SUMMED, down::COMPUTERS + 32);
    for (int row = lane; row < down::rows_of<ALL_ROWS>(first_row); row += 32)
      store_tagged_device(word_of(exchange, first_row + row, branch),
                          tagged(ordered_sum<down::GROUPS>(shared.down.partial[row]), tag_of_words(call)));
    if (place == 0 && lane == 0)
      store_tagged_device(word_of(exchange, SCALES, branch), tagged(shared.scale, tag_of_words(call)));

    if (mixes) {
      const Partials scales = await(exchange, call, SCALES);
      float scale_of_lane = scales.of[0];
#pragma unroll
      for (int i = 1; i < BRANCHES; ++i) scale_of_lane = lane == i ? scales.of[i] : scale_of_lane;
#pragma unroll
      for (int i = 0; i < MIX_STEPS; ++i) {
        const float scale = from_lane(scale_of_lane, of[i]);
        if (i * 32 + lane < MIXED) shared.y[of[i]][column[i] - first_column] = to_float(normalised(x[i], weight[i], scale));
      }
      arrive_at(MIXABLE, down::COMPUTERS + 32);
    }
    // The rows behind the low rank are the raw injection logits of the next boundary.
    if (blockIdx.x == down::CTAS - 1 && lane < BRANCHES)
      injection_out[lane] = to_storage(sum_of(await(exchange, call, LOW_RANK + lane).of));
    return;
  }

  constexpr int team = 0;
  const int member = threadIdx.x;
  wait_for_arrival(&shared.down_arrived);
  down::Weights rows;
  down::take(rows, 0, team, member, &shared.down.sink);
  wait_for_previous_grid();
  const int k = branch * HIDDEN + member * down::CHUNK;
  const Elements<down::CHUNK> x = load_fresh<16, down::CHUNK>(residual + k);

  const float scale = down::norm_scale(shared.down, x, team, member);
  if (threadIdx.x == 0) shared.scale = scale;
  down::multiply_rows(shared.down, rows, down::normalised_chunk(x, scale, member), team, member);
  arrive_at(SUMMED, down::COMPUTERS + 32);
  const unsigned int summed = cycles();
  if (!mixes) return;

  const int column = warp * up::COLUMNS_PER_WARP;
  wait_for_arrival(&shared.up_arrived);
  up::Weights columns;
  up::take(columns, column, lane, &shared.sink);
  const int row = threadIdx.x;
  shared.lora[row] = to_float(low_rank_of(sum_of(await_after(exchange, shared.call, row, lane, summed).of)));
  meet_at(MIXABLE, down::COMPUTERS + 32);
  const up::Input input = up::input_of(shared.lora, lane);
  const up::Gates gates = up::gather(up::multiply(columns, input, lane), lane);
  if (up::mixes(lane)) {
    const int mixed_column = column + row_of(lane) / BRANCHES;
    float mixed = 0.0f;
#pragma unroll
    for (int i = 0; i < BRANCHES; ++i) mixed = fmaf(gates.of[i], shared.y[i][mixed_column], mixed);
    block_input[first_column + mixed_column] = to_storage(over_branches(mixed));
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
hyper_connection_final_one_kernel(const storage_t* residual, const storage_t* block, const storage_t* injection,
    const storage_t* __restrict__ norm_weight, const storage_t* __restrict__ down_weight,
    const storage_t* __restrict__ up_weight,
    storage_t* __restrict__ block_input,
    unsigned long long* exchange_words, unsigned int* generations, unsigned int* record,
    unsigned long long timeout_ns) {
  __shared__ Shared shared;
  launch_dependents();
  const Exchange exchange{exchange_words, generations, record};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int branch = blockIdx.x / down::CTAS_PER_BRANCH, place = blockIdx.x % down::CTAS_PER_BRANCH;
  const int first_row = place * down::ROWS_PER_CTA, first_column = blockIdx.x * up::COLUMNS_PER_CTA;
  const bool mixes = blockIdx.x < up::CTAS;
  if (threadIdx.x == 0) {
    initialise_arrival(&shared.down_arrived, 1);
    initialise_arrival(&shared.up_arrived, 2);
    fence_initialised_arrivals();
  }
  __syncthreads();

  if (warp == PRODUCER) {
    if (lane != 0) return;
    long long last = clock64();
    down::prefetch<LOW_RANK>(&shared.down_arrived, norm_weight, down_weight, branch, first_row, last);
    if (mixes) up::prefetch(&shared.up_arrived, up_weight, first_column, last);
    return;
  }

  if (warp == FINISHER) {
    // The values of y that are mixed here: value i * 32 + lane of branch after branch.
    int of[MIX_STEPS], column[MIX_STEPS];
    float weight[MIX_STEPS];
#pragma unroll
    for (int i = 0; i < MIX_STEPS; ++i) {
      const int value = i * 32 + lane < MIXED ? i * 32 + lane : 0;  // lanes without one take the first
      of[i] = value / up::COLUMNS_PER_CTA;
      column[i] = mixes ? first_column + value % up::COLUMNS_PER_CTA : 0;
      weight[i] = to_float(norm_weight[of[i] * HIDDEN + column[i]]);
    }
    keep(weight, &shared.sink);
    wait_for_previous_grid();
    const Call call = begin(exchange, salt_of(block_input), timeout_ns, lane);
    // All loads are on their way before the first is looked at, which comes after the rows.
    storage_t x[MIX_STEPS], added[MIX_STEPS];
#pragma unroll
    for (int i = 0; i < MIX_STEPS; ++i) {
      x[i] = load_fresh<2, 1>(residual + of[i] * HIDDEN + column[i]).value[0];
      added[i] = load_fresh<2, 1>(block + column[i]).value[0];
    }
    const storage_t injected = load_fresh<2, 1>(injection + lane % BRANCHES).value[0];
    if (lane == 0) {
      shared.call = call;
      arrive(&shared.up_arrived);
    }

    meet_at(SUMMED, down::COMPUTERS + 32);
    for (int row = lane; row < down::rows_of<LOW_RANK>(first_row); row += 32)
      store_tagged_device(word_of(exchange, first_row + row, branch),
                          tagged(ordered_sum<down::GROUPS>(shared.down.partial[row]), tag_of_words(call)));
    if (place == 0 && lane == 0)
      store_tagged_device(word_of(exchange, SCALES, branch), tagged(shared.scale, tag_of_words(call)));

    if (mixes) {
      const float injection_of_lane = injection_scale(injected);
      const Partials scales = await(exchange, call, SCALES);
      float scale_of_lane = scales.of[0];
#pragma unroll
      for (int i = 1; i < BRANCHES; ++i) scale_of_lane = lane == i ? scales.of[i] : scale_of_lane;
#pragma unroll
      for (int i = 0; i < MIX_STEPS; ++i) {
        x[i] = combined(x[i], added[i], from_lane(injection_of_lane, of[i]));
        const float scale = from_lane(scale_of_lane, of[i]);
        if (i * 32 + lane < MIXED) shared.y[of[i]][column[i] - first_column] = to_float(normalised(x[i], weight[i], scale));
      }
      arrive_at(MIXABLE, down::COMPUTERS + 32);
    }
    return;
  }

  constexpr int team = 0;
  const int member = threadIdx.x;
  wait_for_arrival(&shared.down_arrived);
  down::Weights rows;
  down::take(rows, 0, team, member, &shared.down.sink);
  wait_for_previous_grid();
  const int k = branch * HIDDEN + member * down::CHUNK;
  Elements<down::CHUNK> x = load_fresh<16, down::CHUNK>(residual + k);
  const Elements<down::CHUNK> added = load_fresh<16, down::CHUNK>(block + member * down::CHUNK);
  const float weight = injection_scale(load_fresh<2, 1>(injection + branch).value[0]);
#pragma unroll
  for (int e = 0; e < down::CHUNK; ++e) x.value[e] = combined(x.value[e], added.value[e], weight);

  const float scale = down::norm_scale(shared.down, x, team, member);
  if (threadIdx.x == 0) shared.scale = scale;
  down::multiply_rows(shared.down, rows, down::normalised_chunk(x, scale, member), team, member);
  arrive_at(SUMMED, down::COMPUTERS + 32);
  const unsigned int summed = cycles();
  if (!mixes) return;

  const int column = warp * up::COLUMNS_PER_WARP;
  wait_for_arrival(&shared.up_arrived);
  up::Weights columns;
  up::take(columns, column, lane, &shared.sink);
  const int row = threadIdx.x;
  shared.lora[row] = to_float(low_rank_of(sum_of(await_after(exchange, shared.call, row, lane, summed).of)));
  meet_at(MIXABLE, down::COMPUTERS + 32);
  const up::Input input = up::input_of(shared.lora, lane);
  const up::Gates gates = up::gather(up::multiply(columns, input, lane), lane);
  if (up::mixes(lane)) {
    const int mixed_column = column + row_of(lane) / BRANCHES;
    float mixed = 0.0f;
#pragma unroll
    for (int i = 0; i < BRANCHES; ++i) mixed = fmaf(gates.of[i], shared.y[i][mixed_column], mixed);
    block_input[first_column + mixed_column] = to_storage(over_branches(mixed));
  }
}

// The state alone, where it must be materialised: a thread takes eight elements.
extern "C" __global__ void __launch_bounds__(128)
hyper_connection_combine_one_kernel(const storage_t* residual, const storage_t* block, const storage_t* injection,
    storage_t* __restrict__ x_out) {
  launch_dependents();
  wait_for_previous_grid();
  const int k = (blockIdx.x * 128 + threadIdx.x) * 8;
  Elements<8> x = load_fresh<16, 8>(residual + k);
  const Elements<8> added = load_fresh<16, 8>(block + k % HIDDEN);
  const float weight = injection_scale(load_fresh<2, 1>(injection + k / HIDDEN).value[0]);
#pragma unroll
  for (int e = 0; e < 8; ++e) x.value[e] = combined(x.value[e], added.value[e], weight);
  store<16>(x_out + k, x);
}
