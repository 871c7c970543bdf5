// Switching stacks: six registers on x86-64, ucontext elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || defined(KERNWRIGHT_UCONTEXT)
#include <ucontext.h>
#define KERNWRIGHT_USES_UCONTEXT 1
#endif

namespace kernwright::emulator {

#ifdef KERNWRIGHT_USES_UCONTEXT

struct Context {
  ucontext_t* state = nullptr;
};

inline void prepare(Context& context, void* bottom, std::size_t bytes, void (*entry)()) {
  if (context.state == nullptr) context.state = new ucontext_t;
  getcontext(context.state);
  context.state->uc_stack.ss_sp = bottom;
  context.state->uc_stack.ss_size = bytes;
  context.state->uc_link = nullptr;
  makecontext(context.state, entry, 0);
}
inline void switch_context(Context& from, const Context& to) {
  if (from.state == nullptr) from.state = new ucontext_t;
  swapcontext(from.state, to.state);
}
inline void discard(Context& context) {
  delete context.state;
  context.state = nullptr;
}

#else

struct Context {
  void* stack_pointer = nullptr;
};

extern "C" void kernwright_switch(void** from, void* to);

// A fresh stack looks as if `entry` had been switched away from at its first instruction.
inline void prepare(Context& context, void* bottom, std::size_t bytes, void (*entry)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(bottom) + bytes) & ~std::uintptr_t{15};
  auto* frame = reinterpret_cast<void**>(top) - 8;
  for (int i = 0; i < 6; ++i) frame[i] = nullptr;  // r15, r14, r13, r12, rbx, rbp
  frame[6] = reinterpret_cast<void*>(entry);
  frame[7] = nullptr;  // ends a debugger's backtrace
  context.stack_pointer = frame;
}
inline void switch_context(Context& from, const Context& to) {
  kernwright_switch(&from.stack_pointer, to.stack_pointer);
}
inline void discard(Context&) {}

#endif

}  // namespace kernwright::emulator
