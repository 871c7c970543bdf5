// Included before the text of a kernel; what the text may use beyond plain C++ stands in these headers.
#pragma once

#include "arithmetic.h"
#include "atomics.h"
#include "collectives.h"
#include "copies.h"
#include "grid.h"
#include "tensor_cores.h"
#include "warpgroups.h"

namespace kernwright::emulator {

// Calls a kernel with arguments given by address, as the driver takes them.
template <typename... Parameters, std::size_t... I>
inline void invoke(void (*kernel)(Parameters...), void* const* arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<Parameters>*>(arguments[I])...);
}
template <typename... Parameters>
inline void invoke(void (*kernel)(Parameters...), void* const* arguments) {
  invoke(kernel, arguments, std::index_sequence_for<Parameters...>{});
}
template <typename... Parameters>
inline int parameter_sizes(void (*)(Parameters...), int* sizes, int room) {
  const int known[] = {static_cast<int>(sizeof(Parameters))..., 0};
  for (int i = 0; i < static_cast<int>(sizeof...(Parameters)) && i < room; ++i) sizes[i] = known[i];
  return static_cast<int>(sizeof...(Parameters));
}

}  // namespace kernwright::emulator

// A kernel's entry, by its symbol; written below the text by whoever compiles it.
#define KERNWRIGHT_KERNEL(symbol)                                                  \
  extern "C" void kernwright_call_##symbol(void* const* arguments) {               \
    kernwright::emulator::invoke(&symbol, arguments);                              \
  }                                                                                \
  extern "C" int kernwright_parameters_##symbol(int* sizes, int room) {            \
    return kernwright::emulator::parameter_sizes(&symbol, sizes, room);            \
  }

// Where this OS thread's shared memory lies.
#define KERNWRIGHT_SHARED()                                    \
  static thread_local unsigned char kernwright_anchor;         \
  extern "C" void* kernwright_shared() { return &kernwright_anchor; }

// Dynamic shared memory, at the most that a CTA can have (227 KiB on sm_90).
#define KERNWRIGHT_DYNAMIC(type, name)                                  \
  alignas(1024) thread_local type name[227 * 1024 / sizeof(type)];      \
  extern "C" void* kernwright_dynamic() { return name; }
