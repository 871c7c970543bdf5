// Programmatic dependent launch and virtual time.
#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

// A CTA lets dependents launch when one of its threads says so, as `griddepcontrol.launch_dependents` has it.
void grid_launch_dependents() {
  Cta& cta = *current_cta;
  if (cta.triggered) return;
  cta.triggered = true;
  grid_released(*cta.grid);
  make_ready(cta, cta.current);
  leave();
}

void grid_wait(Place place) {
  Cta& cta = *current_cta;
  Grid* previous = cta.grid->previous;
  if (previous == nullptr) return;
  if (!previous->done) {
    previous->waiters.emplace_back(&cta, cta.current);
    wait_here(Waiting::grid, place);
  }
  sanitizer::acquire(&previous->token);
}

std::uint64_t grid_number() { return static_cast<std::uint64_t>(current_cta->grid->index) + 1; }

std::uint64_t clock_nanoseconds() {
  current_cta->fiber().reads_clock = true;
  return world->clock += 10;
}

void sleep_nanoseconds(unsigned nanoseconds, Place) {
  world->clock += nanoseconds;
  if (!world->concurrent) return;
  make_ready(*current_cta, current_cta->current);
  leave(true);
}

void trap(const char* reason, Place place) {
  Fault fault;
  fault.kind = FaultKind::trap;
  fault.text = std::string(reason) + " stopped the kernel";
  fault.place = place;
  fail(std::move(fault));
}

}  // namespace kernwright::emulator
