// all_reduce all_reduce_3584_7168, candidate tagged_narrow (route tagged_words)
// workload: dtype = bfloat16, width = 10752, widths = 3584+7168, payload_bytes = (4, 2752512), packet_bytes = 524288, world_size = 2
// schedule: ctas = 64, threads = 128, word_bytes = 16, loads_in_flight = 4
// argument: pointers[2] channels
// argument: pointers[2] inputs
// argument: pointers[2] addends
// argument: pointers[2] outputs
// argument: uint32 numel
// argument: uint32 input_slot
// argument: uint32 rank_base
// argument: uint64 timeout_ns
// symmetric: symmetric
// staged: staged
// sum2: sum2
// symmetric(channels, outputs, numel, input_slot, rank_base, timeout_ns): grid [64, 1, 1], block [128, 1, 1], dynamic shared 0, resident
// staged(channels, inputs, outputs, numel, rank_base, timeout_ns): grid [64, 1, 1], block [128, 1, 1], dynamic shared 0, resident
// sum2(channels, inputs, addends, outputs, numel, rank_base, timeout_ns): grid [64, 1, 1], block [128, 1, 1], dynamic shared 0, resident
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from all_reduce_3584_7168.toml; edit that and run `kernwright generate`.
//
// Every rank pushes what it contributes to all peers, each 4 bytes with the epoch beside them: a reader that
// finds the epoch has the data. Kernels: symmetric takes what a producer has written to the channel; staged takes
// its input as it is; sum2 the sum of two inputs.

#include <cuda_bf16.h>

using storage_t = __nv_bfloat16;

__device__ __forceinline__ float to_float(storage_t value) { return __bfloat162float(value); }
// Round to nearest even; overflow gives infinity, subnormals are kept.
__device__ __forceinline__ storage_t to_storage(float value) { return __float2bfloat16_rn(value); }

// ---- prelude: atomics, time, launches ----

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

// A counter whose value tells whether another CTA arrived first; it orders nothing.
__device__ __forceinline__ unsigned int fetch_add_relaxed_device(unsigned int* counter, unsigned int value) {
  return __nv_atomic_fetch_add(counter, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
// Sets bits of a word, and gives it as it was.
__device__ __forceinline__ unsigned long long fetch_or_relaxed_device(unsigned long long* word, unsigned long long bits) {
  return __nv_atomic_fetch_or(word, bits, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
// Stores `value` if the word still is `expected`.
__device__ __forceinline__ void replace_relaxed_device(unsigned long long* word, unsigned long long expected, unsigned long long value) {
  __nv_atomic_compare_exchange_n(word, &expected, value, false, __NV_ATOMIC_RELAXED, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
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
constexpr unsigned int CTAS = 64, THREADS = 128;  // of a rank, of a CTA
constexpr unsigned int STRIDE = CTAS * THREADS;
constexpr unsigned int SUMS_AT_ONCE = 2;  // that a thread has on their way

// ---- words: how elements are moved, and added in rank order ----

constexpr int WORD_BYTES = 8;
constexpr unsigned int ELEMENTS = WORD_BYTES / sizeof(storage_t);
using word_t = uint2;
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
__device__ __forceinline__ word_t poison() { return {0xffffffffu, 0xffffffffu}; }

// ---- the channel: memory of every rank that its peers may reach, layout version 3 ----

constexpr unsigned int CHANNEL_CTAS = 256;  // the largest grid that the channel serves
constexpr unsigned int CAPACITY = 2752512;  // bytes of a payload
constexpr unsigned long long TICKET_AT = 0, DEPARTURES_AT = 256, RECORD_AT = 512;
constexpr unsigned long long INPUTS_AT = 11092736;
constexpr unsigned long long PACKETS_AT = 17152;
constexpr unsigned int PACKET = 1048576;  // bytes: a payload, and as many of tags

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
  fetch_or_relaxed_device(ticket(call.own), FAILED);
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
    const unsigned long long found = fetch_or_relaxed_device(ticket(own), mine);
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
  if ((fetch_add_relaxed_device(departures, share) + share) % CHANNEL_CTAS != 0) return;
  replace_relaxed_device(ticket(call.own), static_cast<unsigned long long>(last) << 32 | holder(),
                          static_cast<unsigned long long>(call.epoch) << 32);
}

// ---- packets: data and tags ----

constexpr unsigned int PACKET_WAIT = 2;  // in an error record; 0 and 1 are barriers

// A tag has the generation of its call, and 8 bits of the digest; the halves of a packet have other ones.
struct Tags { unsigned int first, second; };

__device__ __forceinline__ Tags tags_of(const Call& call) {
  return {call.epoch << 8 | (call.digest & 0xff), call.epoch << 8 | (call.digest >> 8 & 0xff)};
}
// Whether a tag is of this call's generation, but not of this call.
__device__ __forceinline__ bool disagrees(unsigned int tag, unsigned int wanted) { return (tag ^ wanted) - 1u < 0xffu; }

__device__ __forceinline__ const storage_t* input_of(unsigned char* channel, unsigned int slot) {
  return reinterpret_cast<const storage_t*>(channel + INPUTS_AT + static_cast<unsigned long long>(slot) * CAPACITY);
}
__device__ __forceinline__ tagged_t tagged(word_t word, Tags tags) { return {word.x, tags.first, word.y, tags.second}; }
__device__ __forceinline__ word_t untagged(tagged_t value) { return {value.x, value.z}; }
// Both halves must be of this call: they may arrive one after the other.
__device__ __forceinline__ bool complete(tagged_t value, Tags tags) {
  return (value.y == tags.first) & (value.w == tags.second);
}
__device__ __forceinline__ bool disagrees(tagged_t value, Tags tags) {
  return disagrees(value.y, tags.first) | disagrees(value.w, tags.second);
}
__device__ __forceinline__ unsigned int late_tag(tagged_t value, Tags tags) {
  return value.y == tags.first ? value.w : value.y;
}

__device__ __forceinline__ void push(const Channels& channels, const Call& call, unsigned int word, word_t mine) {
#pragma unroll
  for (unsigned int peer = 0; peer < WORLD_SIZE; ++peer)
    if (peer != call.rank)
      store_tagged_system(packet(channels.of[peer], call.epoch, call.rank) + word, tagged(mine, tags_of(call)));
}

// What the peers push of the words from `begin` on that are a thread's next ones.
struct Arrived { tagged_t of[SUMS_AT_ONCE][WORLD_SIZE]; };

// Looks for a peer whose word is of another call and names it; if the time is `up`, also one whose word is missing.
// False if there is none. Reads the words again: what is rarely done needn't keep registers.
__device__ bool report_missing(const Call& call, unsigned int begin, unsigned int words, bool up) {
  const Tags tags = tags_of(call);
#pragma unroll 1
  for (unsigned int at = begin; at < words && at < begin + SUMS_AT_ONCE * STRIDE; at += STRIDE)
#pragma unroll 1
    for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank) {
      if (rank == call.rank) continue;
      const tagged_t found = load_tagged_system(packet(call.own, call.epoch, rank) + at);
      const bool other = disagrees(found, tags);
      if (!other && (complete(found, tags) || !up)) continue;
      const unsigned int tag = late_tag(found, tags), epoch = call.epoch - ((call.epoch - (tag >> 8)) & GENERATIONS);
      report(call, rank, other ? DISAGREEMENT : PACKET_WAIT, other ? tag & 0xff : epoch);
      return true;
    }
  return false;
}

// Waits until all of them are there. Looks at all that are missing at once: where one has come, the others mostly have.
// False also if a peer has made another call.
__device__ __forceinline__ bool wait_for(const Call& call, unsigned int begin, unsigned int words, Arrived& arrived) {
  const unsigned long long began = nanoseconds();
  const Tags tags = tags_of(call);
  unsigned int polls = 0;
  bool missing[SUMS_AT_ONCE][WORLD_SIZE];
#pragma unroll
  for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
#pragma unroll
    for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank)
      missing[i][rank] = (rank != call.rank) & (begin + i * STRIDE < words);
  for (;;) {
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
#pragma unroll
      for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank)
        if (missing[i][rank])
          arrived.of[i][rank] = load_tagged_system(packet(call.own, call.epoch, rank) + begin + i * STRIDE);
    const unsigned long long now = nanoseconds();  // while the loads are on their way
    bool any = false;
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
#pragma unroll
      for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank) {
        missing[i][rank] = missing[i][rank] & !complete(arrived.of[i][rank], tags);
        any |= missing[i][rank];
      }
    if (!any) return true;
    const bool up = now - began > call.timeout_ns;
    if ((up || ++polls % 1024 == 0) && report_missing(call, begin, words, up)) return false;
  }
}

__device__ __forceinline__ word_t sum_of(const Call& call, const tagged_t (&arrived)[WORLD_SIZE], word_t mine) {
  word_t contributed[WORLD_SIZE];
#pragma unroll
  for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank)
    contributed[rank] = rank == call.rank ? mine : untagged(arrived[rank]);
  return sum_in_rank_order(contributed);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_symmetric_tagged_narrow(const __grid_constant__ Channels channels,
    const __grid_constant__ Outputs outputs, unsigned int numel, unsigned int input_slot,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const Tensor input = tensor(input_of(channels.of[rank_base + blockIdx.y], input_slot), numel);
  word_t mine[SUMS_AT_ONCE];
  const auto take = [&](unsigned int begin) {
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (const unsigned int word = begin + i * STRIDE; word < words) mine[i] = load(input, word);
  };
  Call call;
  bool alive;
  unsigned int at = first;
#pragma unroll 1  // most payloads are one round
  do {
    take(at);
    if (at == first) {  // the ticket is on its way together with the first words
      call = begin(channels, rank_base, mixed(0x65192395u, numel), timeout_ns);
      alive = !call.lost;
    }
    if (!call.lost)
#pragma unroll
      for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
        if (at + i * STRIDE < words) push(channels, call, at + i * STRIDE, mine[i]);
    Arrived arrived;
    alive = alive && wait_for(call, at, words, arrived);  // who has waited in vain doesn't wait again
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (at + i * STRIDE < words)
        store(output, at + i * STRIDE, alive ? sum_of(call, arrived.of[i], mine[i]) : poison());
    at += SUMS_AT_ONCE * STRIDE;
  } while (at < words);
  finish(call, alive, words);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_staged_tagged_narrow(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  word_t mine[SUMS_AT_ONCE];
  const auto take = [&](unsigned int begin) {
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (const unsigned int word = begin + i * STRIDE; word < words) mine[i] = load(input, word);
  };
  Call call;
  bool alive;
  unsigned int at = first;
#pragma unroll 1  // most payloads are one round
  do {
    take(at);
    if (at == first) {  // the ticket is on its way together with the first words
      call = begin(channels, rank_base, mixed(0x4bc1dc7eu, numel), timeout_ns);
      alive = !call.lost;
    }
    if (!call.lost)
#pragma unroll
      for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
        if (at + i * STRIDE < words) push(channels, call, at + i * STRIDE, mine[i]);
    Arrived arrived;
    alive = alive && wait_for(call, at, words, arrived);  // who has waited in vain doesn't wait again
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (at + i * STRIDE < words)
        store(output, at + i * STRIDE, alive ? sum_of(call, arrived.of[i], mine[i]) : poison());
    at += SUMS_AT_ONCE * STRIDE;
  } while (at < words);
  finish(call, alive, words);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_sum2_tagged_narrow(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Inputs addends,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor addend = tensor(addends.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  word_t mine[SUMS_AT_ONCE];
  const auto take = [&](unsigned int begin) {
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (const unsigned int word = begin + i * STRIDE; word < words) mine[i] = local_sum(load(input, word), load(addend, word));
  };
  Call call;
  bool alive;
  unsigned int at = first;
#pragma unroll 1  // most payloads are one round
  do {
    take(at);
    if (at == first) {  // the ticket is on its way together with the first words
      call = begin(channels, rank_base, mixed(0xc3d919a0u, numel), timeout_ns);
      alive = !call.lost;
    }
    if (!call.lost)
#pragma unroll
      for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
        if (at + i * STRIDE < words) push(channels, call, at + i * STRIDE, mine[i]);
    Arrived arrived;
    alive = alive && wait_for(call, at, words, arrived);  // who has waited in vain doesn't wait again
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (at + i * STRIDE < words)
        store(output, at + i * STRIDE, alive ? sum_of(call, arrived.of[i], mine[i]) : poison());
    at += SUMS_AT_ONCE * STRIDE;
  } while (at < words);
  finish(call, alive, words);
}
