// linear_all_reduce linear_all_reduce_5120, candidate copies_between (route sliced_copy_engine)
// workload: dtype = bfloat16, width = 5120, world_size = 2, channel_rows = 16384, quantisation = none, nonfinite = nan
// schedule: gemm = torch, ctas = 256, threads = 512, slices = [4, 4, 3, 1], align = 128, min_m = 2048, free_sms = 0, stages = 2, additions = main
// argument: pointers[2] channels
// argument: uint32 numel
// argument: uint32 rank_base
// argument: uint64 at
// argument: uint64 begin_at
// argument: uint64 stride
// argument: uint64 timeout_ns
// linear: meet -> add -> close
// meet(channels, at, numel, rank_base, timeout_ns): grid [1, 1, 1], block [32, 1, 1], dynamic shared 0, resident
// add(channels, at, fetched, stride, result, begin_at, numel, rank_base): grid [256, 1, 1], block [512, 1, 1], dynamic shared 0
// close(channels, result, numel, rank_base, timeout_ns): grid [1, 1, 1], block [32, 1, 1], dynamic shared 0, resident
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from linear_all_reduce_5120.toml; edit that and run `kernwright generate`.
//
// Slices of rows: copy engines fetch one from the peers beside the GEMM of the next.

#include <cuda_bf16.h>

using storage_t = __nv_bfloat16;

__device__ __forceinline__ float to_float(storage_t value) { return __bfloat162float(value); }
// Round to nearest even; overflow gives infinity, subnormals are kept.
__device__ __forceinline__ storage_t to_storage(float value) { return __float2bfloat16_rn(value); }

// ---- prelude: atomics, time, launches ----

// Flags. Order and scope stand in the name; no protocol here relies on a fence.
__device__ __forceinline__ unsigned long long load_acquire_system(const unsigned long long* flag) {
  return __nv_atomic_load_n(const_cast<unsigned long long*>(flag), __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM);
}
__device__ __forceinline__ void store_release_system(unsigned long long* flag, unsigned long long value) {
  __nv_atomic_store_n(flag, value, __NV_ATOMIC_RELEASE, __NV_THREAD_SCOPE_SYSTEM);
}
// A counter that orders what was written before it; order and scope stand in the name.
__device__ __forceinline__ unsigned int fetch_add_device(unsigned int* counter, unsigned int value) {
  return __nv_atomic_fetch_add(counter, value, __NV_ATOMIC_ACQ_REL, __NV_THREAD_SCOPE_DEVICE);
}

// A word that only ever says that something has happened; it orders nothing.
__device__ __forceinline__ unsigned int load_relaxed_device(const unsigned int* word) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(word), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
// Sets bits of a word, and gives it as it was.
__device__ __forceinline__ unsigned long long fetch_or_acquire_device(unsigned long long* word, unsigned long long bits) {
  return __nv_atomic_fetch_or(word, bits, __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_DEVICE);
}
// Stores `value` if the word still is `expected`.
__device__ __forceinline__ void replace_release_device(unsigned long long* word, unsigned long long expected, unsigned long long value) {
  __nv_atomic_compare_exchange_n(word, &expected, value, false, __NV_ATOMIC_RELEASE, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
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

// A number of this launch: no other launch on the GPU has it at the same time, neither an eager one nor a node of a graph.
__device__ __forceinline__ unsigned long long grid_id() {
#ifdef __CUDA_ARCH__
  unsigned long long id;
  asm("mov.u64 %0, %%gridid;" : "=l"(id));
  return id;
#else
  return kernwright::emulator::gridid();
#endif
}

// ---- workload and schedule ----

constexpr int WORLD_SIZE = 2;
constexpr unsigned int CTAS = 1, THREADS = 32;  // of kernels that meet their peers'

// ---- words: how elements are moved, and added in rank order ----

constexpr int WORD_BYTES = 16;
constexpr unsigned int ELEMENTS = WORD_BYTES / sizeof(storage_t);
using word_t = uint4;
struct alignas(WORD_BYTES) Elements { storage_t value[ELEMENTS]; };

__device__ __forceinline__ Elements elements_of(word_t word) { return *reinterpret_cast<const Elements*>(&word); }
__device__ __forceinline__ word_t word_of(Elements elements) { return *reinterpret_cast<const word_t*>(&elements); }

__device__ __forceinline__ unsigned int words_of(unsigned int numel) { return (numel + ELEMENTS - 1) / ELEMENTS; }

// A caller's tensor: `numel` elements, aligned as elements are. Whole words are moved at once if it is a word's
// alignment; the last word may be cut off.
struct Tensor {
  storage_t* data;
  unsigned int numel;
  bool aligned;
};
__device__ __forceinline__ Tensor tensor(const storage_t* data, unsigned int numel) {
  return {const_cast<storage_t*>(data), numel, reinterpret_cast<unsigned long long>(data) % WORD_BYTES == 0};
}

__device__ __forceinline__ word_t load(const Tensor& source, unsigned int word) {
  const unsigned int first = word * ELEMENTS;
  if (source.aligned && first + ELEMENTS <= source.numel) return reinterpret_cast<const word_t*>(source.data)[word];
  Elements elements;
#pragma unroll
  for (unsigned int i = 0; i < ELEMENTS; ++i)
    elements.value[i] = first + i < source.numel ? source.data[first + i] : to_storage(0.0f);
  return word_of(elements);
}

__device__ __forceinline__ void store(const Tensor& target, unsigned int word, word_t value) {
  const unsigned int first = word * ELEMENTS;
  if (target.aligned && first + ELEMENTS <= target.numel) {
    reinterpret_cast<word_t*>(target.data)[word] = value;
    return;
  }
  const Elements elements = elements_of(value);
#pragma unroll
  for (unsigned int i = 0; i < ELEMENTS; ++i)
    if (first + i < target.numel) target.data[first + i] = elements.value[i];
}

// The sum of the ranks: in FP32, in rank order from rank 0's value, rounded once.
__device__ __forceinline__ word_t sum_in_rank_order(const word_t (&words)[WORLD_SIZE]) {
  Elements result;
#pragma unroll
  for (unsigned int i = 0; i < ELEMENTS; ++i) {
    float sum = to_float(elements_of(words[0]).value[i]);
#pragma unroll
    for (int rank = 1; rank < WORLD_SIZE; ++rank) sum = sum + to_float(elements_of(words[rank]).value[i]);
    result.value[i] = to_storage(sum);
  }
  return word_of(result);
}

// NaN in every dtype: what stands where a sum is missing.
__device__ __forceinline__ word_t poison() { return {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}; }

// ---- the channel: memory of every rank that its peers may reach, layout version 3 ----

constexpr unsigned int CHANNEL_CTAS = 256;  // the largest grid that the channel serves
constexpr unsigned long long TICKET_AT = 0, DEPARTURES_AT = 256, RECORD_AT = 512;
constexpr unsigned int BARRIERS = 2;  // of a call
constexpr unsigned long long FLAGS_AT = 768;
constexpr unsigned long long PARTIALS_AT = 83903488;

struct Channels { unsigned char* of[WORLD_SIZE]; };  // of every rank

// One call, as a CTA of a rank sees it.
struct Call {
  unsigned int rank, epoch;
  unsigned int digest;  // of what the call does; ranks whose digests differ have made different calls
  bool lost;  // another call holds the channel, or one has failed there: this one neither publishes nor waits
  unsigned char* own;  // this rank's channel
  unsigned long long timeout_ns;
};

// Epochs count calls modulo 2^32, but for those whose low 24 bits, the generation, are 0 as in new memory. Odd and
// even take turns across the gap as well.
constexpr unsigned int GENERATIONS = 0xffffffu;
__device__ __forceinline__ unsigned int following(unsigned int epoch) {
  return (epoch & GENERATIONS) == GENERATIONS ? epoch + 3u : epoch + 1u;
}

// Takes one more number into a digest.
__device__ __forceinline__ unsigned int mixed(unsigned int digest, unsigned int number) {
  digest = (digest ^ number) * 0x9e3779b1u;
  return digest ^ digest >> 15;
}

// The ticket of a rank: the epoch of its last call in the high half; in the low one who is inside, 0 if nobody is.
// One atomic both takes it and reads the epoch.
constexpr unsigned int FAILED = 0x80000000u;  // in the low half, for good: a call has failed

__device__ __forceinline__ unsigned long long* ticket(unsigned char* channel) {
  return reinterpret_cast<unsigned long long*>(channel + TICKET_AT);
}
__device__ __forceinline__ unsigned int* record(unsigned char* channel) {
  return reinterpret_cast<unsigned int*>(channel + RECORD_AT);
}

// What a launch sets in the ticket: 26 bits of its number, and how many of them are 0. So no launch's bits hold all
// of another's, and who finds its own bits alone shares the channel with nobody.
__device__ __forceinline__ unsigned int holder() {
  const unsigned int number = static_cast<unsigned int>((grid_id() * 0x9e3779b97f4a7c15ull) >> 38);
  return number | (26u - __popc(number)) << 26;
}

// Writes the error record; the first failure of a rank counts. No later call gets the ticket.
__device__ void report(const Call& call, unsigned int peer, unsigned int waited_for, unsigned int seen) {
  unsigned int* const fields = record(call.own);
  if (fetch_add_device(fields, 1) == 0) {
    fields[1] = call.rank;
    fields[2] = peer;
    fields[3] = waited_for;
    fields[4] = call.epoch;
    fields[5] = seen;
    fields[6] = blockIdx.x;
    fields[7] = call.digest;
  }
  fetch_or_acquire_device(ticket(call.own), FAILED);
}

// In an error record, in the place of what a peer was waited for.
constexpr unsigned int OVERLAP = 3;  // two calls met on this rank
constexpr unsigned int DISAGREEMENT = 255;  // the peer has made another call; `seen` is its digest

__shared__ unsigned int last;  // epoch of the call before this one

__device__ __forceinline__ Call begin(const Channels& channels, unsigned int rank_base, unsigned int digest,
                                      unsigned long long timeout_ns) {
  __shared__ unsigned int others;
  const unsigned int rank = rank_base + blockIdx.y;
  unsigned char* const own = channels.of[rank];
  if (threadIdx.x == 0) {
    const unsigned int mine = holder();
    const unsigned long long found = fetch_or_acquire_device(ticket(own), mine);
    last = static_cast<unsigned int>(found >> 32);
    others = static_cast<unsigned int>(found) == mine ? 0u : static_cast<unsigned int>(found);
  }
  __syncthreads();  // one decision for the whole CTA
  const Call call = {rank, following(last), digest, others != 0, own, timeout_ns};
  if (call.lost && threadIdx.x == 0 && (others & FAILED) == 0) report(call, rank, OVERLAP, 0);
  return call;
}

// Ends the CTA's part of a call. The last CTA of a rank advances the epoch and gives the ticket back; where a thread
// lacks what it waited for (`done`), nobody does.
__device__ __forceinline__ void finish(const Call& call, bool done) {
  if (!__syncthreads_and(done) || threadIdx.x != 0) return;  // all threads have read what they need
  const unsigned int share = blockIdx.x == 0 ? CHANNEL_CTAS + 1 - CTAS : 1u;  // of a call's CTAs: CHANNEL_CTAS in all
  unsigned int* const departures = reinterpret_cast<unsigned int*>(call.own + DEPARTURES_AT);
  if ((fetch_add_device(departures, share) + share) % CHANNEL_CTAS != 0) return;
  replace_release_device(ticket(call.own), static_cast<unsigned long long>(last) << 32 | holder(),
                          static_cast<unsigned long long>(call.epoch) << 32);
}

// ---- barriers over the ranks: CTA i of a rank meets CTA i of its peers ----

enum Barrier : unsigned int { START = 0, SECOND = 1 };

// Flags alternate, so that a peer that is one call ahead leaves those of this call. It is never two ahead: for that
// it needs a whole call of ours behind this one.
__device__ __forceinline__ unsigned long long* flag(unsigned char* channel, unsigned int epoch, Barrier barrier, unsigned int peer) {
  return reinterpret_cast<unsigned long long*>(channel + FLAGS_AT) +
         (((epoch & 1) * BARRIERS + barrier) * CHANNEL_CTAS + blockIdx.x) * WORLD_SIZE + peer;
}

// What a flag holds: the epoch, then the digest of the call.
__device__ __forceinline__ unsigned long long mark(const Call& call) {
  return static_cast<unsigned long long>(call.epoch) << 32 | call.digest;
}

// The epoch up to which a peer's CTA has come, where it isn't at this call's barrier.
__device__ unsigned int reached(const Call& call, Barrier barrier, unsigned int peer, unsigned long long seen) {
  const unsigned int before = static_cast<unsigned int>(load_acquire_system(flag(call.own, last, barrier, peer)) >> 32);
  return before == last ? before : static_cast<unsigned int>(seen >> 32);
}

__device__ __forceinline__ bool wait_for(const Call& call, Barrier barrier, unsigned int peer) {
  const unsigned long long* const mine = flag(call.own, call.epoch, barrier, peer);
  const unsigned long long began = nanoseconds();
  for (;;) {
    const unsigned long long seen = load_acquire_system(mine);
    const unsigned long long now = nanoseconds();  // while the load is on its way
    if (seen == mark(call)) return true;
    // Flags of other epochs are old, however long the CTA's flag was not used.
    const bool disagrees = static_cast<unsigned int>(seen >> 32) == call.epoch;
    if (disagrees || now - began > call.timeout_ns) {
      if (disagrees)
        report(call, peer, DISAGREEMENT, static_cast<unsigned int>(seen));
      else
        report(call, peer, barrier, reached(call, barrier, peer, seen));
      return false;
    }
  }
}

// Tells every peer that this CTA has come to the barrier, and waits until theirs have. What the CTA has stored
// or read before is the caller's to order, by `__syncthreads`. False for the whole CTA if a peer doesn't come, or
// has made another call.
__device__ __forceinline__ bool meet(const Channels& channels, const Call& call, Barrier barrier) {
  bool met = !call.lost;
  if (met && threadIdx.x < WORLD_SIZE) {
    store_release_system(flag(channels.of[threadIdx.x], call.epoch, barrier, call.rank), mark(call));
    met = wait_for(call, barrier, threadIdx.x);
  }
  return __syncthreads_and(met);  // what the peers have stored is there for every thread
}

// ---- beside copy engines: one warp meets the peers, a few CTAs add what was fetched ----

constexpr unsigned int ADD_THREADS = 512, ADD_STRIDE = 256 * ADD_THREADS;

// What this rank has put into its channel of a slice, or fetched of it from its peers, is there or done; so it is on
// all peers. The slice lies `at` bytes into the partial sums.
extern "C" __global__ void __launch_bounds__(THREADS)
linear_all_reduce_meet_copies_between(const __grid_constant__ Channels channels, unsigned long long at, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const unsigned int digest = mixed(mixed(0xf47d609eu, numel), static_cast<unsigned int>(at / WORD_BYTES));
  const Call call = begin(channels, rank_base, digest, timeout_ns);
  finish(call, meet(channels, call, START));
}

// Adds the ranks' contributions: this rank's own, `at` bytes into its partial sums, and `fetched`, where rank r's
// begins `stride` * r elements in. The sums begin `begin_at` elements into the result.
// The sums also replace the own contribution: there the peers fetch them.
extern "C" __global__ void __launch_bounds__(ADD_THREADS)
linear_all_reduce_add_copies_between(const __grid_constant__ Channels channels, unsigned long long at, const storage_t* fetched,
    unsigned long long stride, storage_t* result, unsigned long long begin_at, unsigned int numel, unsigned int rank_base) {
  storage_t* const own = reinterpret_cast<storage_t*>(channels.of[rank_base] + PARTIALS_AT + at);
  // Some contribution never came.
  const bool broken = __syncthreads_or(threadIdx.x == 0 && load_relaxed_device(record(channels.of[rank_base])) != 0);
  const Tensor output = tensor(result + begin_at, numel);
  Tensor contributions[WORLD_SIZE];
#pragma unroll
  for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank)
    contributions[rank] = tensor(rank == rank_base ? own : fetched + stride * rank, numel);
  const unsigned int words = words_of(numel);
  for (unsigned int word = blockIdx.x * ADD_THREADS + threadIdx.x; word < words; word += ADD_STRIDE) {
    word_t contributed[WORLD_SIZE];
#pragma unroll
    for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank) contributed[rank] = load(contributions[rank], word);
    const word_t sum = broken ? poison() : sum_in_rank_order(contributed);
    store(output, word, sum);
    store(tensor(own, numel), word, sum);
  }
}

// The end of a call: all ranks have fetched what they needed, so the next GEMM may write. If a peer didn't come,
// the whole result is NaN.
extern "C" __global__ void __launch_bounds__(THREADS)
linear_all_reduce_close_copies_between(const __grid_constant__ Channels channels, storage_t* result, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, mixed(0x70078083u, numel), timeout_ns);
  const bool met = meet(channels, call, START);
  if (!met) {
    const Tensor output = tensor(result, numel);
    for (unsigned int word = threadIdx.x; word < words_of(numel); word += THREADS) store(output, word, poison());
  }
  finish(call, met);
}
