// Programmatic dependent launch, clocks, and ways to stop.
#pragma once

#include "language.h"

namespace kernwright::emulator {

inline void griddepcontrol_launch_dependents() { grid_launch_dependents(); }
inline void griddepcontrol_wait(KERNWRIGHT_CALLER) { grid_wait(KERNWRIGHT_HERE); }
// %globaltimer: virtual nanoseconds. They pass with every switch, and leap where everybody only waits.
inline std::uint64_t globaltimer() { return clock_nanoseconds(); }
// %gridid: a number for each launch of a run, never 0.
inline std::uint64_t gridid() { return grid_number(); }
inline void nanosleep(unsigned nanoseconds, KERNWRIGHT_CALLER) { sleep_nanoseconds(nanoseconds, KERNWRIGHT_HERE); }

}  // namespace kernwright::emulator

inline void __nanosleep(unsigned nanoseconds, KERNWRIGHT_CALLER) {
  kernwright::emulator::sleep_nanoseconds(nanoseconds, KERNWRIGHT_HERE);
}
inline long long clock64() { return static_cast<long long>(kernwright::emulator::clock_nanoseconds()); }
[[noreturn]] inline void __trap(KERNWRIGHT_CALLER) { kernwright::emulator::trap("__trap()", KERNWRIGHT_HERE); }
