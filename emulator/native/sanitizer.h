// ThreadSanitizer's fiber and annotation calls; nothing in the ordinary build.
#pragma once

#ifdef KERNWRIGHT_SANITIZED
extern "C" {
void* __tsan_get_current_fiber(void);
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
namespace kernwright::emulator::sanitizer {
constexpr bool ON = true;
constexpr unsigned NO_SYNC = 1;  // a switch orders nothing: only the kernel's own synchronisation does
inline void* current() { return __tsan_get_current_fiber(); }
inline void* create(const char* name) {
  void* fiber = __tsan_create_fiber(0);
  __tsan_set_fiber_name(fiber, name);
  return fiber;
}
inline void destroy(void* fiber) { __tsan_destroy_fiber(fiber); }
inline void switch_to(void* fiber) { __tsan_switch_to_fiber(fiber, NO_SYNC); }
inline void acquire(void* address) { __tsan_acquire(address); }
inline void release(void* address) { __tsan_release(address); }
}  // namespace kernwright::emulator::sanitizer
#else
namespace kernwright::emulator::sanitizer {
constexpr bool ON = false;
inline void* current() { return nullptr; }
inline void* create(const char*) { return nullptr; }
inline void destroy(void*) {}
inline void switch_to(void*) {}
inline void acquire(void*) {}
inline void release(void*) {}
}  // namespace kernwright::emulator::sanitizer
#endif
