// What surrounds an atomic: checks, chances for others to run, and waiting that costs nothing.
#include "state.h"

namespace kernwright::emulator {

namespace {

constexpr int SCOPE_BLOCK = 1, SCOPE_CLUSTER = 2, SCOPE_DEVICE = 3;
constexpr std::uintptr_t ANYWHERE = 0;

std::uintptr_t cell(const void* address) { return reinterpret_cast<std::uintptr_t>(address) >> 4; }

void refuse_scope(const char* scope, const char* among, const void* address, Place place, Place other) {
  Fault fault;
  fault.kind = FaultKind::scope;
  fault.text = std::string("an atomic of ") + scope + " scope at " + describe_address(address) + ", which " + among +
               " use (also at " + other.file + ":" + std::to_string(other.line) + ")";
  fault.place = place;
  fail(std::move(fault));
}

// A scope must cover everybody who uses the word.
void check_scope(const void* address, int scope, Place place) {
  const Cta& cta = *current_cta;
  if (buffer_near(address) == nullptr) return;  // shared memory
  AtomicUse& use = world->atomics[reinterpret_cast<std::uintptr_t>(address)];
  // Stream order separates the launches of a rank: an earlier one doesn't share the word any more.
  if (use.grid == nullptr || (use.grid != cta.grid && use.grid->rank == cta.grid->rank && use.grid->done)) {
    use = AtomicUse{cta.grid, cta.id, scope, place, false, false};
    return;
  }
  use.several_ctas |= use.cta != cta.id;
  use.several_ranks |= use.grid->rank != cta.grid->rank;
  const Place other = use.place;
  if (scope < use.scope) {
    use.scope = scope;
    use.place = place;
  }
  if (use.several_ctas && use.scope <= SCOPE_CLUSTER)
    refuse_scope(use.scope <= SCOPE_BLOCK ? "block" : "cluster", "several CTAs", address, place, other);
  if (use.several_ranks && use.scope <= SCOPE_DEVICE)
    refuse_scope("device", "several ranks", address, place, other);
}

void park(const void* address, Place place, bool anything) {
  Cta& cta = *current_cta;
  world->parked[anything ? ANYWHERE : cell(address)].emplace_back(&cta, cta.current);
  wait_here(Waiting::poll, place, address);
}

void wake_list(std::uintptr_t key) {
  const auto found = world->parked.find(key);
  if (found == world->parked.end()) return;
  const auto list = std::move(found->second);
  world->parked.erase(found);
  for (const auto& [cta, fiber] : list) make_ready(*cta, fiber);
}

}  // namespace

void wake(const void* address) {
  if (world->parked.empty()) return;
  wake_list(cell(address));
  wake_list(ANYWHERE);
}

void wake_all_parked() {
  auto parked = std::move(world->parked);
  world->parked.clear();
  for (const auto& [key, list] : parked)
    for (const auto& [cta, fiber] : list) make_ready(*cta, fiber);
}

void before_atomic(Operation, const void* address, unsigned bytes, int scope, Place place) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    Fault fault;
    fault.kind = FaultKind::misaligned;
    fault.text = "an atomic of " + std::to_string(bytes) + " bytes at " + describe_address(address);
    fault.place = place;
    fail(std::move(fault));
  }
  if (!world->concurrent) return;
  check_scope(address, scope, place);
  yield_point();
}

void after_load(const void* address, std::uint64_t value, Place place) {
  Spin& spin = current_cta->fiber().spin;
  if (spin.changes == world->changes) {
    ++spin.lap;
    if (spin.address == address && spin.value == value && spin.line == place.line) {
      const bool anything = spin.lap != 1;
      spin.changes = ~std::uint64_t{0};
      park(address, place, anything);
      return;
    }
    if (spin.lap < spin.power) {
      yield_point();
      return;
    }
    spin = Spin{address, value, place.line, world->changes, 0, spin.power * 2};
  } else {
    spin = Spin{address, value, place.line, world->changes, 0, 1};
  }
  if (world->concurrent) yield_point();
}

void after_write(const void* address, unsigned bytes, bool changed, Place place) {
  (void)place;
  if (changed) {
    ++world->changes;
    world->leap = 0;
    wake(address);
    if (bytes > 16) wake(static_cast<const char*>(address) + 16);
  }
  if (world->concurrent) yield_point();
}

void between_halves(Place) {
  const bool tears = world->policy == Policy::random ? world->random.one_in(2)
                                                     : world->policy == Policy::adversarial && world->random.one_in(1);
  if (!world->concurrent || !tears) return;
  make_ready(*current_cta, current_cta->current);
  leave(true);
}

}  // namespace kernwright::emulator
