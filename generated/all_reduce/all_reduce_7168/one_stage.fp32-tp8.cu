// all_reduce all_reduce_7168, candidate one_stage (route one_stage)
// workload: dtype = float32, width = 7168, widths = 7168, payload_bytes = (4, 29360128), packet_bytes = 524288, world_size = 8
// schedule: ctas = 64, threads = 512, word_bytes = 16, loads_in_flight = 4
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
// symmetric(channels, outputs, numel, input_slot, rank_base, timeout_ns): grid [64, 1, 1], block [512, 1, 1], dynamic shared 0, resident
// staged(channels, inputs, outputs, numel, rank_base, timeout_ns): grid [64, 1, 1], block [512, 1, 1], dynamic shared 0, resident
// sum2(channels, inputs, addends, outputs, numel, rank_base, timeout_ns): grid [64, 1, 1], block [512, 1, 1], dynamic shared 0, resident
//
// Compiled with --std=c++17 --fmad=false -lineinfo --ptxas-options=-v
// Generated from all_reduce_7168.toml; edit that and run `kernwright generate`.
//
// Every rank reads what all have contributed, and adds it. Kernels: symmetric takes what a producer has written to
// the channel; staged copies its input there first; sum2 copies the sum of two inputs.

using storage_t = float;

__device__ __forceinline__ float to_float(storage_t value) { return value; }
__device__ __forceinline__ storage_t to_storage(float value) { return value; }

// ---- prelude: atomics, time ----

// Flags. Order and scope stand in the name; no protocol here relies on a fence.
__device__ __forceinline__ unsigned int load_acquire_system(const unsigned int* flag) {
  return __nv_atomic_load_n(const_cast<unsigned int*>(flag), __NV_ATOMIC_ACQUIRE, __NV_THREAD_SCOPE_SYSTEM);
}
__device__ __forceinline__ void store_release_system(unsigned int* flag, unsigned int value) {
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
constexpr unsigned int CTAS = 64, THREADS = 512;  // of a rank, of a CTA
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

__device__ __forceinline__ void store_poison(const Tensor& target, unsigned int first, unsigned int words) {
  for (unsigned int word = first; word < words; word += STRIDE) store(target, word, poison());
}

// ---- the channel: memory of every rank that its peers may reach, layout version 2 ----

constexpr unsigned int CHANNEL_CTAS = 256;  // the largest grid that the channel serves
constexpr unsigned int CAPACITY = 29360128;  // bytes of a payload
constexpr unsigned long long EPOCHS_AT = 0, TICKETS_AT = 1024, RECORD_AT = 2048;
constexpr unsigned long long FLAGS_AT = 2304;
constexpr unsigned long long STAGED_AT = 16795904, INPUTS_AT = 79186176;

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

// ---- barriers over the ranks: CTA i of a rank meets CTA i of its peers ----

enum Barrier : unsigned int { START = 0, SECOND = 1 };

__device__ __forceinline__ unsigned int* flag(unsigned char* channel, Barrier barrier, unsigned int peer) {
  return reinterpret_cast<unsigned int*>(channel + FLAGS_AT) +
         (barrier * CHANNEL_CTAS + blockIdx.x) * WORLD_SIZE + peer;
}

// A peer may already be one call ahead, never two: for that it needs this call of ours. Other values are old,
// however long the CTA's flag was not used.
__device__ __forceinline__ bool reached(unsigned int seen, unsigned int epoch) {
  return seen == epoch || seen == following(epoch);
}

__device__ __forceinline__ bool wait_for(const Call& call, Barrier barrier, unsigned int peer) {
  const unsigned int* const mine = flag(call.own, barrier, peer);
  const unsigned long long began = nanoseconds();
  for (;;) {
    const unsigned int seen = load_acquire_system(mine);
    const unsigned long long now = nanoseconds();  // while the load is on its way
    if (reached(seen, call.epoch)) return true;
    if (now - began > call.timeout_ns) {
      report(call, peer, barrier, seen);
      return false;
    }
  }
}

// Tells every peer that this CTA has come to the barrier, and waits until theirs have. What the CTA has stored
// or read before is the caller's to order, by `__syncthreads`. False for the whole CTA if a peer doesn't come.
__device__ __forceinline__ bool meet(const Channels& channels, const Call& call, Barrier barrier) {
  bool met = !call.lost;
  if (met && threadIdx.x < WORLD_SIZE) {
    store_release_system(flag(channels.of[threadIdx.x], barrier, call.rank), call.epoch);
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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_symmetric_one_stage(const __grid_constant__ Channels channels,
    const __grid_constant__ Outputs outputs, unsigned int numel, unsigned int input_slot,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, timeout_ns);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const unsigned long long at = input_at(input_slot);
  bool met = meet(channels, call, START);  // the producers of all ranks are done
  if (met) {
    sum_words(channels, at, 0, first, words, [&](unsigned int word, word_t sum) { store(output, word, sum); });
    __syncthreads();  // the whole CTA has read
    met = meet(channels, call, SECOND);  // all ranks have read: the next producer, who knows of no epochs, may write
  }
  if (!met) store_poison(output, first, words);
  finish(call);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_staged_one_stage(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, timeout_ns);
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const unsigned long long at = staged_at(call);
  if (!call.lost)
    stream<WORDS_AT_ONCE>(
        first, words, [&](unsigned int word) { return load(input, word); },
        [&](unsigned int word, word_t mine) { words_at(call.own, at)[word] = mine; });
  __syncthreads();  // the words of the whole CTA are there
  if (meet(channels, call, START))
    sum_words(channels, at, 0, first, words, [&](unsigned int word, word_t sum) { store(output, word, sum); });
  else
    store_poison(output, first, words);
  finish(call);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
all_reduce_sum2_one_stage(const __grid_constant__ Channels channels,
    const __grid_constant__ Inputs inputs,
    const __grid_constant__ Inputs addends,
    const __grid_constant__ Outputs outputs, unsigned int numel,
    unsigned int rank_base, unsigned long long timeout_ns) {
  const Call call = begin(channels, rank_base, timeout_ns);
  const Tensor input = tensor(inputs.of[blockIdx.y], numel);
  const Tensor addend = tensor(addends.of[blockIdx.y], numel);
  const Tensor output = tensor(outputs.of[blockIdx.y], numel);
  const unsigned int words = words_of(numel), first = blockIdx.x * THREADS + threadIdx.x;
  const unsigned long long at = staged_at(call);
  if (!call.lost)
    stream<WORDS_AT_ONCE>(
        first, words, [&](unsigned int word) { return local_sum(load(input, word), load(addend, word)); },
        [&](unsigned int word, word_t mine) { words_at(call.own, at)[word] = mine; });
  __syncthreads();  // the words of the whole CTA are there
  if (meet(channels, call, START))
    sum_words(channels, at, 0, first, words, [&](unsigned int word, word_t sum) { store(output, word, sum); });
  else
    store_poison(output, first, words);
  finish(call);
}
