// __nv_atomic_*: order and scope in the call, as NVRTC has them. They are performed by the compiler's own
// atomics, so that ThreadSanitizer sees the order that the text asks for.
#pragma once

#include "language.h"

#define __NV_ATOMIC_RELAXED __ATOMIC_RELAXED
#define __NV_ATOMIC_CONSUME __ATOMIC_CONSUME
#define __NV_ATOMIC_ACQUIRE __ATOMIC_ACQUIRE
#define __NV_ATOMIC_RELEASE __ATOMIC_RELEASE
#define __NV_ATOMIC_ACQ_REL __ATOMIC_ACQ_REL
#define __NV_ATOMIC_SEQ_CST __ATOMIC_SEQ_CST
#define __NV_THREAD_SCOPE_THREAD 0
#define __NV_THREAD_SCOPE_BLOCK 1
#define __NV_THREAD_SCOPE_CLUSTER 2
#define __NV_THREAD_SCOPE_DEVICE 3
#define __NV_THREAD_SCOPE_SYSTEM 4

namespace kernwright::emulator {

template <int BYTES> struct Bits;
template <> struct Bits<1> { using type = std::uint8_t; };
template <> struct Bits<2> { using type = std::uint16_t; };
template <> struct Bits<4> { using type = std::uint32_t; };
template <> struct Bits<8> { using type = std::uint64_t; };
template <typename T> using bits_of = typename Bits<sizeof(T)>::type;
// Keeps deduction to the pointer: the value may be a literal of another type, as CUDA allows.
template <typename T> struct Same { using type = T; };
template <typename T> using same_t = typename Same<T>::type;

// The compiler's atomics want their order as a constant.
template <typename Word>
inline Word load_word(const Word* address, int order) {
  if (order == __ATOMIC_RELAXED) return __atomic_load_n(address, __ATOMIC_RELAXED);
  if (order == __ATOMIC_ACQUIRE || order == __ATOMIC_CONSUME) return __atomic_load_n(address, __ATOMIC_ACQUIRE);
  return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}
template <typename Word>
inline Word exchange_word(Word* address, Word value, int order) {
  if (order == __ATOMIC_RELAXED) return __atomic_exchange_n(address, value, __ATOMIC_RELAXED);
  if (order == __ATOMIC_ACQUIRE) return __atomic_exchange_n(address, value, __ATOMIC_ACQUIRE);
  if (order == __ATOMIC_RELEASE) return __atomic_exchange_n(address, value, __ATOMIC_RELEASE);
  if (order == __ATOMIC_ACQ_REL) return __atomic_exchange_n(address, value, __ATOMIC_ACQ_REL);
  return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST);
}
template <typename Word>
inline void store_word(Word* address, Word value, int order) {
  if (order == __ATOMIC_RELAXED) return __atomic_store_n(address, value, __ATOMIC_RELAXED);
  if (order == __ATOMIC_RELEASE) return __atomic_store_n(address, value, __ATOMIC_RELEASE);
  return __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
}

template <typename T>
inline T load_atomic(const T* address, int order, int scope, Place place) {
  before_atomic(Operation::load, address, sizeof(T), scope, place);
  if constexpr (sizeof(T) == 16) {  // only the 8-byte halves are atomic
    std::uint64_t halves[2];
    const auto* words = reinterpret_cast<const std::uint64_t*>(address);
    halves[0] = load_word(words, order);
    between_halves(place);
    halves[1] = load_word(words + 1, order);
    after_load(address, halves[0] ^ (halves[1] * 0x9e3779b97f4a7c15u), place);
    T value;
    std::memcpy(&value, halves, 16);
    return value;
  } else {
    const bits_of<T> bits = load_word(reinterpret_cast<const bits_of<T>*>(address), order);
    after_load(address, bits, place);
    return bits_as<T>(bits);
  }
}

template <typename T>
inline void store_atomic(T* address, T value, int order, int scope, Place place) {
  before_atomic(Operation::store, address, sizeof(T), scope, place);
  if constexpr (sizeof(T) == 16) {
    std::uint64_t halves[2];
    std::memcpy(halves, &value, 16);
    auto* words = reinterpret_cast<std::uint64_t*>(address);
    bool changed = false;
    for (int half = 0; half < 2; ++half) {
      if (half == 1) between_halves(place);
      changed |= load_word(words + half, __ATOMIC_RELAXED) != halves[half];
      store_word(words + half, halves[half], order);
    }
    after_write(address, 16, changed, place);
  } else {
    const auto bits = bits_as<bits_of<T>>(value);
    auto* word = reinterpret_cast<bits_of<T>*>(address);
    const bool changed = load_word(word, __ATOMIC_RELAXED) != bits;
    store_word(word, bits, order);
    after_write(address, sizeof(T), changed, place);
  }
}

template <typename T>
inline T exchange_atomic(T* address, T value, int order, int scope, Place place) {
  before_atomic(Operation::update, address, sizeof(T), scope, place);
  const auto bits = bits_as<bits_of<T>>(value);
  const bits_of<T> old = exchange_word(reinterpret_cast<bits_of<T>*>(address), bits, order);
  after_write(address, sizeof(T), old != bits, place);
  return bits_as<T>(old);
}

template <typename T>
inline bool compare_exchange_atomic(T* address, T* expected, T desired, int order, int scope, Place place) {
  before_atomic(Operation::update, address, sizeof(T), scope, place);
  auto old = bits_as<bits_of<T>>(*expected);
  const auto wanted = bits_as<bits_of<T>>(desired);
  auto* word = reinterpret_cast<bits_of<T>*>(address);
  const bool done = order == __ATOMIC_RELAXED
                        ? __atomic_compare_exchange_n(word, &old, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
                        : __atomic_compare_exchange_n(word, &old, wanted, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  *expected = bits_as<T>(old);
  if (done)
    after_write(address, sizeof(T), old != wanted, place);
  else
    after_load(address, old, place);  // a loop around a failed exchange is a wait
  return done;
}

// Read, compute, write: `order` decides what it synchronises with, the baton makes it one step.
template <typename T, typename Compute>
inline T update_atomic(T* address, int order, int scope, Place place, Compute compute) {
  before_atomic(Operation::update, address, sizeof(T), scope, place);
  auto* word = reinterpret_cast<bits_of<T>*>(address);
  const T old = bits_as<T>(load_word(word, __ATOMIC_RELAXED));
  const T value = compute(old);
  exchange_word(word, bits_as<bits_of<T>>(value), order);
  after_write(address, sizeof(T), std::memcmp(&old, &value, sizeof(T)) != 0, place);
  return old;
}

}  // namespace kernwright::emulator

template <typename T>
inline T __nv_atomic_load_n(const T* address, int order, int scope = __NV_THREAD_SCOPE_SYSTEM, KERNWRIGHT_CALLER) {
  return kernwright::emulator::load_atomic(address, order, scope, KERNWRIGHT_HERE);
}
template <typename T>
inline void __nv_atomic_load(const T* address, T* result, int order, int scope = __NV_THREAD_SCOPE_SYSTEM,
                             KERNWRIGHT_CALLER) {
  *result = kernwright::emulator::load_atomic(address, order, scope, KERNWRIGHT_HERE);
}
template <typename T>
inline void __nv_atomic_store_n(T* address, kernwright::emulator::same_t<T> value, int order,
                                int scope = __NV_THREAD_SCOPE_SYSTEM, KERNWRIGHT_CALLER) {
  kernwright::emulator::store_atomic(address, value, order, scope, KERNWRIGHT_HERE);
}
template <typename T>
inline void __nv_atomic_store(T* address, const T* value, int order, int scope = __NV_THREAD_SCOPE_SYSTEM,
                              KERNWRIGHT_CALLER) {
  kernwright::emulator::store_atomic(address, *value, order, scope, KERNWRIGHT_HERE);
}
template <typename T>
inline T __nv_atomic_exchange_n(T* address, kernwright::emulator::same_t<T> value, int order,
                                int scope = __NV_THREAD_SCOPE_SYSTEM, KERNWRIGHT_CALLER) {
  return kernwright::emulator::exchange_atomic(address, value, order, scope, KERNWRIGHT_HERE);
}
template <typename T>
inline bool __nv_atomic_compare_exchange_n(T* address, T* expected, kernwright::emulator::same_t<T> desired,
                                           bool /*weak*/, int success, int /*failure*/,
                                           int scope = __NV_THREAD_SCOPE_SYSTEM, KERNWRIGHT_CALLER) {
  return kernwright::emulator::compare_exchange_atomic(address, expected, desired, success, scope, KERNWRIGHT_HERE);
}

#define KERNWRIGHT_FETCH(name, expression)                                                                   \
  template <typename T>                                                                                      \
  inline T __nv_atomic_fetch_##name(T* address, kernwright::emulator::same_t<T> value, int order,            \
                                    int scope = __NV_THREAD_SCOPE_SYSTEM, KERNWRIGHT_CALLER) {               \
    return kernwright::emulator::update_atomic(address, order, scope, KERNWRIGHT_HERE,                       \
                                               [value](T old) -> T { return expression; });                  \
  }                                                                                                          \
  template <typename T>                                                                                      \
  inline void __nv_atomic_##name(T* address, kernwright::emulator::same_t<T> value, int order,               \
                                 int scope = __NV_THREAD_SCOPE_SYSTEM, KERNWRIGHT_CALLER) {                  \
    __nv_atomic_fetch_##name(address, value, order, scope, file, line);                                      \
  }
KERNWRIGHT_FETCH(add, old + value)
KERNWRIGHT_FETCH(sub, old - value)
KERNWRIGHT_FETCH(and, old & value)
KERNWRIGHT_FETCH(or, old | value)
KERNWRIGHT_FETCH(xor, old ^ value)
KERNWRIGHT_FETCH(min, value < old ? value : old)
KERNWRIGHT_FETCH(max, old < value ? value : old)
#undef KERNWRIGHT_FETCH
