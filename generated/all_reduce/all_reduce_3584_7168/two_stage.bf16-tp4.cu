// all_reduce all_reduce_3584_7168, candidate two_stage (route two_stage)
// workload: dtype = bfloat16, width = 10752, widths = 3584+7168, payload_bytes = (4, 2752512), packet_bytes = 524288, world_size = 4
// schedule: ctas = 64, threads = 384, word_bytes = 16, loads_in_flight = 4
// argument: pointers[4] channels
// argument: pointers[4] inputs
// argument: pointers[4] addends
// argument: pointers[4] outputs
// argument: uint32 numel
// argument: uint32 input_slot
// argument: uint32 rank_base
// argument: uint64 timeout_ns
// symmetric: symmetric
// staged: staged
// sum2: sum2
// symmetric(channels, outputs, numel, input_slot, rank_base, timeout_ns): grid [64, 1, 1], block [384, 1, 1], dynamic shared 0, resident
// staged(channels, inputs, outputs, numel, rank_base, timeout_ns): grid [64, 1, 1], block [384, 1, 1], dynamic shared 0, resident
// sum2(channels, inputs, addends, outputs, numel, rank_base, timeout_ns): grid [64, 1, 1], block [384, 1, 1], dynamic shared 0, resident
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from all_reduce_3584_7168.toml; edit that and run `kernwright generate`.
//
// Every rank adds one part of the payload, then reads the sums of the other parts from its peers. Kernels: symmetric
// takes what a producer has written to the channel; staged copies its input there first; sum2 copies the sum of
// two inputs.

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

// Tagged words: data and its generation travel in one store, so that the data is its own flag.
// 16 bytes travel in one store, but only the 8-byte halves are sure to arrive whole: each has its own tag.
__device__ __forceinline__ uint4 load_tagged_system(const uint4* word) {
  uint4 value;
  __nv_atomic_load(const_cast<uint4*>(word), &value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
  return value;
}
__device__ __forceinline__ void store_tagged_system(uint4* word, uint4 value) {
  __nv_atomic_store(word, &value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_SYSTEM);
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

constexpr int WORLD_SIZE = 4;
constexpr unsigned int CTAS = 64, THREADS = 384;  // of a rank, of a CTA
constexpr unsigned int STRIDE = CTAS * THREADS;
constexpr unsigned int SUMS_AT_ONCE = 1;  // that a thread has on their way
constexpr unsigned int WORDS_AT_ONCE = 4;  // the same, of words that aren't added

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

// What `sum2` contributes: the local sum, rounded on its own.
__device__ __forceinline__ word_t local_sum(word_t a, word_t b) {
  Elements result;
#pragma unroll
  for (unsigned int i = 0; i < ELEMENTS; ++i)
    result.value[i] = to_storage(to_float(elements_of(a).value[i]) + to_float(elements_of(b).value[i]));
  return word_of(result);
}

// NaN in every dtype: what stands where a sum is missing.
__device__ __forceinline__ word_t poison() { return {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}; }

// ---- the channel: memory of every rank that its peers may reach, layout version 3 ----

constexpr unsigned int CHANNEL_CTAS = 256;  // the largest grid that the channel serves
constexpr unsigned int CAPACITY = 2752512;  // bytes of a payload
constexpr unsigned long long TICKET_AT = 0, DEPARTURES_AT = 256, RECORD_AT = 512;
constexpr unsigned long long INPUTS_AT = 14615296;
constexpr unsigned long long PACKETS_AT = 33536;
constexpr unsigned int PACKET = 1048576;  // bytes: a payload, and as many of tags
constexpr unsigned int BARRIERS = 2;  // of a call
constexpr unsigned long long FLAGS_AT = 768;
constexpr unsigned long long STAGED_AT = 8422144;
constexpr unsigned long long SCRATCH_AT = 13927168;

struct Channels { unsigned char* of[WORLD_SIZE]; };  // of every rank
struct Inputs { const storage_t* of[WORLD_SIZE]; };  // of the ranks of this launch, from `rank_base` on
struct Outputs { storage_t* of[WORLD_SIZE]; };

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

// ---- packets: a payload from each peer, twice: odd and even epochs ----
// Two suffice: a rank is at call e + 2 only after each peer has begun e + 1, so has read all of e.

using tagged_t = uint4;

__device__ __forceinline__ tagged_t* packet(unsigned char* channel, unsigned int epoch, unsigned int from) {
  return reinterpret_cast<tagged_t*>(
      channel + PACKETS_AT + static_cast<unsigned long long>((epoch & 1) * WORLD_SIZE + from) * PACKET);
}

// Tags repeat after 2^24 calls. Once in 2^20 calls, of either parity and whatever their route, a rank clears the words
// that its peers don't push in this call: so no word is ever as old. Peers push there again two calls later.
constexpr unsigned int RENEWAL = 0xffffeu, RENEWED = 0x80000u;

__device__ void renew(const Call& call, unsigned int pushed) {
#pragma unroll 1
  for (unsigned int from = 0; from < WORLD_SIZE; ++from)
#pragma unroll 1
    for (unsigned int word = pushed + blockIdx.x * THREADS + threadIdx.x; word < PACKET / sizeof(tagged_t); word += STRIDE)
      store_tagged_system(packet(call.own, call.epoch, from) + word, {0u, 0u, 0u, 0u});
}

// Ends the CTA's part of a call. The last CTA of a rank advances the epoch and gives the ticket back; where a thread
// lacks what it waited for (`done`), nobody does.
__device__ __forceinline__ void finish(const Call& call, bool done, unsigned int pushed = 0) {
  if (!call.lost && (call.epoch & RENEWAL) == RENEWED) renew(call, pushed);
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

// ---- reading what the ranks contribute ----

__device__ __forceinline__ word_t* words_at(unsigned char* channel, unsigned long long at) {
  return reinterpret_cast<word_t*>(channel + at);
}
__device__ __forceinline__ unsigned long long input_at(unsigned int slot) {
  return INPUTS_AT + static_cast<unsigned long long>(slot) * CAPACITY;
}
// Copies alternate, so that a peer that is one call behind still finds the one it reads.
__device__ __forceinline__ unsigned long long staged_at(const Call& call) {
  return STAGED_AT + static_cast<unsigned long long>(call.epoch & 1) * CAPACITY;
}

struct Contributions { word_t of[WORLD_SIZE]; };

__device__ __forceinline__ Contributions contributions(const Channels& channels, unsigned long long at, unsigned int word) {
  Contributions found;
#pragma unroll
  for (int rank = 0; rank < WORLD_SIZE; ++rank) found.of[rank] = words_at(channels.of[rank], at)[word];
  return found;
}

// Every thread's words below `count`: `AT_ONCE` of them are on their way before the first is used.
template <unsigned int AT_ONCE, typename Load, typename Use>
__device__ __forceinline__ void stream(unsigned int first, unsigned int count, Load load_word, Use use) {
  for (unsigned int begin = first; begin < count; begin += AT_ONCE * STRIDE) {
    decltype(load_word(begin)) held[AT_ONCE];
#pragma unroll
    for (unsigned int i = 0; i < AT_ONCE; ++i)
      if (begin + i * STRIDE < count) held[i] = load_word(begin + i * STRIDE);
#pragma unroll
    for (unsigned int i = 0; i < AT_ONCE; ++i)
      if (begin + i * STRIDE < count) use(begin + i * STRIDE, held[i]);
  }
}

// Adds what lies at `at` in every channel, from word `offset` on, and hands on each sum.
template <typename Use>
__device__ __forceinline__ void sum_words(const Channels& channels, unsigned long long at, unsigned int offset,
                                          unsigned int first, unsigned int count, Use use) {
  stream<SUMS_AT_ONCE>(
      first, count, [&](unsigned int word) { return contributions(channels, at, offset + word); },
      [&](unsigned int word, const Contributions& found) { use(word, sum_in_rank_order(found.of)); });
}

// Words of the part that starts at `begin`; the last parts may be shorter, or empty.
__device__ __forceinline__ unsigned int length(unsigned int part, unsigned int begin, unsigned int words) {
  return begin >= words ? 0 : min(part, words - begin);
}

// Both stages, of what lies at `at` in every channel. The second barrier also tells that all ranks have read this
// one's contribution; its sums are written again behind the start of a later call, whose ranks have left this one.
// Word i of every part belongs to the same CTA on every rank, for copies, sums and reads alike. False for the whole CTA
// if the result is NaN.
__device__ __forceinline__ bool reduce(const Channels& channels, const Call& call, unsigned long long at,
                                       const Tensor& output, unsigned int words, unsigned int part, unsigned int first) {
  const unsigned int own = call.rank * part;
  bool met = meet(channels, call, START);
  if (met) {
    sum_words(channels, at, own, first, length(part, own, words), [&](unsigned int i, word_t sum) {
      words_at(call.own, SCRATCH_AT)[i] = sum;
      store(output, own + i, sum);
    });
    __syncthreads();  // the sums of the whole CTA are there
    met = meet(channels, call, SECOND);
  }
  for (unsigned int step = met ? 1 : 0; step < WORLD_SIZE; ++step) {
    const unsigned int rank = (call.rank + step) % WORLD_SIZE, begin = rank * part;
    const word_t* const sums = words_at(channels.of[rank], SCRATCH_AT);
    stream<WORDS_AT_ONCE>(
        first, length(part, begin, words), [&](unsigned int i) { return met ? sums[i] : poison(); },
        [&](unsigned int i, word_t sum) { store(output, begin + i, sum); });
  }
  return met;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_symmetric_two_stage(const __grid_constant__ Channels channels,
    const __grid_constant__ Outputs outputs, unsigned int numel, unsigned int input_slot,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const Call call = begin(channels, rank_base, mixed(mixed(0xc24bf712u, numel), input_slot), timeout_ns);
  const unsigned int part = (words + WORLD_SIZE - 1) / WORLD_SIZE;
  finish(call, reduce(channels, call, input_at(input_slot), output, words, part, first));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_staged_two_stage(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const Call call = begin(channels, rank_base, mixed(0x79b1546au, numel), timeout_ns);
  const unsigned int part = (words + WORLD_SIZE - 1) / WORLD_SIZE;
  if (!call.lost)
    for (unsigned int begin = 0; begin < WORLD_SIZE * part; begin += part) {
      word_t* const staged = words_at(call.own, staged_at(call)) + begin;
      stream<WORDS_AT_ONCE>(
          first, length(part, begin, words),
          [&](unsigned int i) {
            const unsigned int word = begin + i;
            return load(input, word);
          },
          [&](unsigned int i, word_t mine) { staged[i] = mine; });
    }
  __syncthreads();  // the words of the whole CTA are there
  finish(call, reduce(channels, call, staged_at(call), output, words, part, first));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_sum2_two_stage(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Inputs addends,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor addend = tensor(addends.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const Call call = begin(channels, rank_base, mixed(0x4bdd1f36u, numel), timeout_ns);
  const unsigned int part = (words + WORLD_SIZE - 1) / WORLD_SIZE;
  if (!call.lost)
    for (unsigned int begin = 0; begin < WORLD_SIZE * part; begin += part) {
      word_t* const staged = words_at(call.own, staged_at(call)) + begin;
      stream<WORDS_AT_ONCE>(
          first, length(part, begin, words),
          [&](unsigned int i) {
            const unsigned int word = begin + i;
            return local_sum(load(input, word), load(addend, word));
          },
          [&](unsigned int i, word_t mine) { staged[i] = mine; });
    }
  __syncthreads();  // the words of the whole CTA are there
  finish(call, reduce(channels, call, staged_at(call), output, words, part, first));
}
