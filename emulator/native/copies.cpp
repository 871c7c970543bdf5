// cp.async, cp.async.bulk and mbarriers. A copy is carried out when somebody waits for it, or, where the
// schedule says so, when it is issued: both are allowed, and each shows other mistakes.
#include <algorithm>
#include <cstring>

#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

namespace {

[[noreturn]] void misuse(FaultKind kind, std::string text, Place place) {
  Fault fault;
  fault.kind = kind;
  fault.text = std::move(text);
  fault.place = place;
  fail(std::move(fault));
}

void perform(const Copy& copy) {
  std::memcpy(copy.target, copy.source, copy.valid_bytes);
  std::memset(static_cast<char*>(copy.target) + copy.valid_bytes, 0, copy.bytes - copy.valid_bytes);
}

// Under ThreadSanitizer at once: the copy then counts as an access of the thread that issued it.
bool at_once() {
  return sanitizer::ON || (world->policy != Policy::round_robin && world->random.one_in(1));
}

void check_alignment(const void* a, const void* b, unsigned alignment, const char* what, Place place) {
  for (const void* address : {a, b})
    if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0)
      misuse(FaultKind::misaligned,
             std::string(what) + " needs addresses that are multiples of " + std::to_string(alignment) + "; " +
                 describe_address(address) + " isn't",
             place);
}

void commit(std::unique_ptr<Copies>& copies) {
  if (!copies) copies = std::make_unique<Copies>();
  copies->groups.push_back(std::move(copies->open));
  copies->open.clear();
}

void wait_groups(std::unique_ptr<Copies>& copies, unsigned groups_left) {
  while (copies && copies->groups.size() > groups_left) {
    for (const Copy& copy : copies->groups.front()) perform(copy);
    copies->groups.pop_front();
  }
}

void issue(std::unique_ptr<Copies>& copies, const Copy& copy) {
  if (!copies) copies = std::make_unique<Copies>();
  if (at_once())
    perform(copy);
  else
    copies->open.push_back(copy);
}

// An mbarrier's 8 bytes: phase parity, arrivals of a phase, arrivals and bytes that the phase still lacks.
struct Mbarrier {
  std::uint64_t phase : 1, arrivals : 20, pending : 20;
  std::int64_t bytes : 23;
};
static_assert(sizeof(Mbarrier) == 8);

Mbarrier& known(std::uint64_t* barrier, Place place) {
  const auto& all = current_cta->mbarriers;
  if (std::find(all.begin(), all.end(), barrier) == all.end())
    misuse(FaultKind::misuse, "the mbarrier at " + describe_address(barrier) + " was never initialised", place);
  return *reinterpret_cast<Mbarrier*>(barrier);
}

void advance_if_complete(Mbarrier& state, std::uint64_t* barrier) {
  if (state.pending != 0 || state.bytes != 0) return;
  state.phase ^= 1;
  state.pending = state.arrivals;
  ++world->changes;
  wake(barrier);
}

void complete_bytes(std::uint64_t* barrier, unsigned bytes) {
  auto& state = *reinterpret_cast<Mbarrier*>(barrier);
  state.bytes -= static_cast<std::int64_t>(bytes);
  sanitizer::release(barrier);
  advance_if_complete(state, barrier);
}

// Carries out the copies that `barrier` counts.
void perform_for(std::uint64_t* barrier) {
  auto& copies = current_cta->bulk_copies;
  for (std::size_t i = 0; i < copies.size();) {
    if (copies[i].barrier != barrier) {
      ++i;
      continue;
    }
    const Copy copy = copies[i].copy;
    copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(i));
    perform(copy);
    complete_bytes(barrier, copy.bytes);
  }
}

bool passed(const Mbarrier& state, unsigned parity) { return state.phase != (parity & 1); }

}  // namespace

void copy_async(void* shared, const void* global, unsigned bytes, unsigned valid_bytes, Place place) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || valid_bytes > bytes)
    misuse(FaultKind::misuse, "cp.async of " + std::to_string(bytes) + " bytes; it copies 4, 8 or 16", place);
  check_alignment(shared, global, bytes, "cp.async", place);
  issue(current_cta->fiber().async, Copy{shared, global, bytes, valid_bytes});
}
void copy_async_commit() { commit(current_cta->fiber().async); }
void copy_async_wait(unsigned groups_left, Place) { wait_groups(current_cta->fiber().async, groups_left); }

void mbarrier_init(std::uint64_t* barrier, unsigned arrivals, Place place) {
  check_alignment(barrier, barrier, 8, "an mbarrier", place);
  if (arrivals == 0 || arrivals >= 1u << 20)
    misuse(FaultKind::misuse, "an mbarrier of " + std::to_string(arrivals) + " arrivals; it takes 1 to 2^20 - 1", place);
  auto& all = current_cta->mbarriers;
  if (std::find(all.begin(), all.end(), barrier) == all.end()) all.push_back(barrier);
  Mbarrier state{};
  state.arrivals = state.pending = arrivals;
  std::memcpy(barrier, &state, sizeof state);
}

std::uint64_t mbarrier_arrive(std::uint64_t* barrier, unsigned arrivals, unsigned expected_bytes, Place place) {
  Mbarrier& state = known(barrier, place);
  if (arrivals > state.pending)
    misuse(FaultKind::misuse,
           "more arrivals at the mbarrier " + describe_address(barrier) + " than the " +
               std::to_string(static_cast<unsigned>(state.arrivals)) + " that its phase takes",
           place);
  sanitizer::release(barrier);
  const std::uint64_t phase = state.phase;
  state.bytes += static_cast<std::int64_t>(expected_bytes);
  state.pending -= arrivals;
  advance_if_complete(state, barrier);
  yield_point();
  return phase;
}

void mbarrier_expect_tx(std::uint64_t* barrier, unsigned bytes, Place place) {
  known(barrier, place).bytes += static_cast<std::int64_t>(bytes);
}

bool mbarrier_try_wait(std::uint64_t* barrier, unsigned parity, Place place) {
  Mbarrier& state = known(barrier, place);
  yield_point();
  if (!passed(state, parity)) perform_for(barrier);
  if (!passed(state, parity)) {
    std::uint64_t word;
    std::memcpy(&word, &state, sizeof word);
    after_load(barrier, word, place);
    return false;
  }
  sanitizer::acquire(barrier);
  return true;
}

void mbarrier_wait(std::uint64_t* barrier, unsigned parity, Place place) {
  while (!mbarrier_try_wait(barrier, parity, place)) {
  }
}

void bulk_copy_to_shared(void* shared, const void* global, unsigned bytes, std::uint64_t* barrier, Place place) {
  check_alignment(shared, global, 16, "cp.async.bulk", place);
  if (bytes == 0 || bytes % 16 != 0)
    misuse(FaultKind::misuse, "cp.async.bulk of " + std::to_string(bytes) + " bytes; it copies multiples of 16", place);
  known(barrier, place);
  const Copy copy{shared, global, bytes, bytes};
  if (at_once()) {
    perform(copy);
    complete_bytes(barrier, bytes);
    return;
  }
  current_cta->bulk_copies.push_back(BulkCopy{copy, barrier});
  ++world->changes;
  wake(barrier);  // whoever waits already carries it out
}

void bulk_copy_to_global(void* global, const void* shared, unsigned bytes, Place place) {
  check_alignment(shared, global, 16, "cp.async.bulk", place);
  if (bytes == 0 || bytes % 16 != 0)
    misuse(FaultKind::misuse, "cp.async.bulk of " + std::to_string(bytes) + " bytes; it copies multiples of 16", place);
  issue(current_cta->fiber().bulk, Copy{global, shared, bytes, bytes});
}
void bulk_commit_group() { commit(current_cta->fiber().bulk); }
void bulk_wait_group(unsigned groups_left, Place) { wait_groups(current_cta->fiber().bulk, groups_left); }

}  // namespace kernwright::emulator
