// all_reduce all_reduce_3584_7168, candidate tagged_words (route tagged_words)
// workload: dtype = float16, width = 10752, widths = 3584+7168, payload_bytes = (4, 2752512), packet_bytes = 524288, world_size = 8
// schedule: ctas = 256, threads = 256, word_bytes = 16, loads_in_flight = 2
// argument: pointers[8] channels
// argument: pointers[8] inputs
// argument: pointers[8] addends
// argument: pointers[8] outputs
// argument: uint32 numel
// argument: uint32 input_slot
// argument: uint32 rank_base
// argument: uint64 timeout_ns
// symmetric: symmetric
// staged: staged
// sum2: sum2
// symmetric(channels, outputs, numel, input_slot, rank_base, timeout_ns): grid [256, 1, 1], block [256, 1, 1], dynamic shared 0, resident
// staged(channels, inputs, outputs, numel, rank_base, timeout_ns): grid [256, 1, 1], block [256, 1, 1], dynamic shared 0, resident
// sum2(channels, inputs, addends, outputs, numel, rank_base, timeout_ns): grid [256, 1, 1], block [256, 1, 1], dynamic shared 0, resident
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from all_reduce_3584_7168.toml; edit that and run `kernwright generate`.
//
// Every rank pushes what it contributes to all peers, each 4 bytes with the epoch beside them: a reader that
// finds the epoch has the data. Kernels: symmetric takes what a producer has written to the channel; staged takes
// its input as it is; sum2 the sum of two inputs.

#include <cuda_fp16.h>

using storage_t = __half;

__device__ __forceinline__ float to_float(storage_t value) { return __half2float(value); }
// Round to nearest even; overflow gives infinity, subnormals are kept.
__device__ __forceinline__ storage_t to_storage(float value) { return __float2half_rn(value); }

// ---- prelude: atomics, time ----

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

// A word that only ever says that something has happened; it orders nothing.
__device__ __forceinline__ unsigned int load_relaxed_device(const unsigned int* word) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(word), __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
}
// A counter whose value tells whether another CTA arrived first; it orders nothing.
__device__ __forceinline__ unsigned int fetch_add_relaxed_device(unsigned int* counter, unsigned int value) {
  return __nv_atomic_fetch_add(counter, value, __NV_ATOMIC_RELAXED, __NV_THREAD_SCOPE_DEVICE);
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

// ---- workload and schedule ----

constexpr int WORLD_SIZE = 8;
constexpr unsigned int CTAS = 256, THREADS = 256;  // of a rank, of a CTA
constexpr unsigned int STRIDE = CTAS * THREADS;
constexpr unsigned int SUMS_AT_ONCE = 1;  // that a thread has on their way

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

// ---- the channel: memory of every rank that its peers may reach, layout version 2 ----

constexpr unsigned int CHANNEL_CTAS = 256;  // the largest grid that the channel serves
constexpr unsigned int CAPACITY = 2752512;  // bytes of a payload
constexpr unsigned long long EPOCHS_AT = 0, TICKETS_AT = 1024, RECORD_AT = 2048;
constexpr unsigned long long PACKETS_AT = 18688, INPUTS_AT = 22644992;
constexpr unsigned int PACKET = 1048576;  // bytes: a payload, and as many of tags

struct Channels { unsigned char* of[WORLD_SIZE]; };  // of every rank
struct Inputs { const storage_t* of[WORLD_SIZE]; };  // of the ranks of this launch, from `rank_base` on
struct Outputs { storage_t* of[WORLD_SIZE]; };

// One call, as a CTA of a rank sees it.
struct Call {
  unsigned int rank, epoch;
  unsigned int others;  // calls whose CTA of this number was still running; only its first thread knows
  bool lost;  // a call before this one has failed: its peers are at other calls, so it neither publishes nor waits
  unsigned char* own;  // this rank's channel
  unsigned long long timeout_ns;
};

// Epochs count calls modulo 2^32, but for 0, which is what new memory holds. Odd and even
// take turns across the wrap as well.
__device__ __forceinline__ unsigned int following(unsigned int epoch) { return epoch == 0xffffffffu ? 2u : epoch + 1u; }

__device__ __forceinline__ unsigned int* epochs(unsigned char* channel) {
  return reinterpret_cast<unsigned int*>(channel + EPOCHS_AT);
}
__device__ __forceinline__ unsigned int* ticket(unsigned char* channel) {
  return reinterpret_cast<unsigned int*>(channel + TICKETS_AT) + blockIdx.x;
}
__device__ __forceinline__ unsigned int* record(unsigned char* channel) {
  return reinterpret_cast<unsigned int*>(channel + RECORD_AT);
}

__device__ __forceinline__ Call begin(const Channels& channels, unsigned int rank_base, unsigned long long timeout_ns) {
  const unsigned int rank = rank_base + blockIdx.y;
  unsigned char* own = channels.of[rank];
  const unsigned int others = threadIdx.x == 0 ? fetch_add_relaxed_device(ticket(own), 1) : 0;
  const bool lost = load_relaxed_device(record(own)) != 0;
  return {rank, following(epochs(own)[blockIdx.x]), others, lost, own, timeout_ns};
}

// Writes the error record; the first failure of a rank counts.
__device__ void report(const Call& call, unsigned int peer, unsigned int waited_for, unsigned int seen) {
  unsigned int* const fields = record(call.own);
  if (fetch_add_device(fields, 1) != 0) return;
  fields[1] = call.rank;
  fields[2] = peer;
  fields[3] = waited_for;
  fields[4] = call.epoch;
  fields[5] = seen;
  fields[6] = blockIdx.x;
}

constexpr unsigned int OVERLAP = 3;  // in an error record: no peer was waited for, two calls met on this rank

// Advances the epochs of all CTAs that the channel could have, so that they stay equal whatever grids follow
// each other. Comes after a barrier behind `begin`: other threads of the CTA read the epoch there.
__device__ __forceinline__ void finish(const Call& call) {
  if (threadIdx.x == 0) {
    if (call.others != 0) report(call, call.rank, OVERLAP, call.others);
    fetch_add_relaxed_device(ticket(call.own), 0xffffffffu);  // one less
  }
  for (unsigned int cta = blockIdx.x + threadIdx.x * CTAS; cta < CHANNEL_CTAS; cta += CTAS * THREADS)
    epochs(call.own)[cta] = call.epoch;
}

// ---- packets: a payload from each peer, twice: odd and even epochs ----
// Two suffice: a rank is at call e + 2 only after each peer has begun e + 1, so has read all of e.

constexpr unsigned int PACKET_WAIT = 2;  // in an error record; 0 and 1 are barriers

using tagged_t = uint4;

__device__ __forceinline__ tagged_t* packet(unsigned char* channel, const Call& call, unsigned int from) {
  return reinterpret_cast<tagged_t*>(
      channel + PACKETS_AT + static_cast<unsigned long long>((call.epoch & 1) * WORLD_SIZE + from) * PACKET);
}
__device__ __forceinline__ const storage_t* input_of(unsigned char* channel, unsigned int slot) {
  return reinterpret_cast<const storage_t*>(channel + INPUTS_AT + static_cast<unsigned long long>(slot) * CAPACITY);
}
__device__ __forceinline__ tagged_t tagged(word_t word, unsigned int epoch) { return {word.x, epoch, word.y, epoch}; }
__device__ __forceinline__ word_t untagged(tagged_t value) { return {value.x, value.z}; }
// Both halves must be of this call: they may arrive one after the other.
__device__ __forceinline__ bool complete(tagged_t value, unsigned int epoch) {
  return (value.y == epoch) & (value.w == epoch);
}
__device__ __forceinline__ unsigned int late_tag(tagged_t value, unsigned int epoch) {
  return value.y == epoch ? value.w : value.y;
}

__device__ __forceinline__ void push(const Channels& channels, const Call& call, unsigned int word, word_t mine) {
#pragma unroll
  for (unsigned int peer = 0; peer < WORLD_SIZE; ++peer)
    if (peer != call.rank)
      store_tagged_system(packet(channels.of[peer], call, call.rank) + word, tagged(mine, call.epoch));
}

// What the peers push of the words from `begin` on that are a thread's next ones.
struct Arrived { tagged_t of[SUMS_AT_ONCE][WORLD_SIZE]; };

// Names the first peer whose word is missing.
__device__ void report_missing(const Call& call, unsigned int begin, unsigned int words, const Arrived& arrived) {
#pragma unroll
  for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
#pragma unroll
    for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank)
      if (rank != call.rank && begin + i * STRIDE < words && !complete(arrived.of[i][rank], call.epoch)) {
        report(call, rank, PACKET_WAIT, late_tag(arrived.of[i][rank], call.epoch));
        return;
      }
}

// Waits until all of them are there. Looks at all that are missing at once: where one has come, the others mostly have.
__device__ __forceinline__ bool wait_for(const Call& call, unsigned int begin, unsigned int words, Arrived& arrived) {
  const unsigned long long began = nanoseconds();
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
          arrived.of[i][rank] = load_tagged_system(packet(call.own, call, rank) + begin + i * STRIDE);
    const unsigned long long now = nanoseconds();  // while the loads are on their way
    bool any = false;
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
#pragma unroll
      for (unsigned int rank = 0; rank < WORLD_SIZE; ++rank) {
        missing[i][rank] = missing[i][rank] & !complete(arrived.of[i][rank], call.epoch);
        any |= missing[i][rank];
      }
    if (!any) return true;
    if (now - began > call.timeout_ns) {
      report_missing(call, begin, words, arrived);
      return false;
    }
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
all_reduce_symmetric_tagged_words(const __grid_constant__ Channels channels,
    const __grid_constant__ Outputs outputs, unsigned int numel, unsigned int input_slot,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, timeout_ns);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const Tensor input = tensor(input_of(call.own, input_slot), numel);
  bool alive = !call.lost;
#pragma unroll 1  // most payloads are one round
  for (unsigned int begin = first; begin < words; begin += SUMS_AT_ONCE * STRIDE) {
    word_t mine[SUMS_AT_ONCE];
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (const unsigned int word = begin + i * STRIDE; word < words) mine[i] = load(input, word);
    if (!call.lost)
#pragma unroll
      for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
        if (begin + i * STRIDE < words) push(channels, call, begin + i * STRIDE, mine[i]);
    Arrived arrived;
    alive = alive && wait_for(call, begin, words, arrived);  // who has waited in vain doesn't wait again
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (begin + i * STRIDE < words)
        store(output, begin + i * STRIDE, alive ? sum_of(call, arrived.of[i], mine[i]) : poison());
  }
  __syncthreads();  // every thread has read the epoch
  finish(call);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_staged_tagged_words(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, timeout_ns);
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  bool alive = !call.lost;
#pragma unroll 1  // most payloads are one round
  for (unsigned int begin = first; begin < words; begin += SUMS_AT_ONCE * STRIDE) {
    word_t mine[SUMS_AT_ONCE];
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (const unsigned int word = begin + i * STRIDE; word < words) mine[i] = load(input, word);
    if (!call.lost)
#pragma unroll
      for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
        if (begin + i * STRIDE < words) push(channels, call, begin + i * STRIDE, mine[i]);
    Arrived arrived;
    alive = alive && wait_for(call, begin, words, arrived);  // who has waited in vain doesn't wait again
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (begin + i * STRIDE < words)
        store(output, begin + i * STRIDE, alive ? sum_of(call, arrived.of[i], mine[i]) : poison());
  }
  __syncthreads();  // every thread has read the epoch
  finish(call);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_sum2_tagged_words(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Inputs addends,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, timeout_ns);
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor addend = tensor(addends.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  bool alive = !call.lost;
#pragma unroll 1  // most payloads are one round
  for (unsigned int begin = first; begin < words; begin += SUMS_AT_ONCE * STRIDE) {
    word_t mine[SUMS_AT_ONCE];
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (const unsigned int word = begin + i * STRIDE; word < words) mine[i] = local_sum(load(input, word), load(addend, word));
    if (!call.lost)
#pragma unroll
      for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
        if (begin + i * STRIDE < words) push(channels, call, begin + i * STRIDE, mine[i]);
    Arrived arrived;
    alive = alive && wait_for(call, begin, words, arrived);  // who has waited in vain doesn't wait again
#pragma unroll
    for (unsigned int i = 0; i < SUMS_AT_ONCE; ++i)
      if (begin + i * STRIDE < words)
        store(output, begin + i * STRIDE, alive ? sum_of(call, arrived.of[i], mine[i]) : poison());
  }
  __syncthreads();  // every thread has read the epoch
  finish(call);
}
