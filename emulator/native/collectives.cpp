// Barriers of a CTA and operations of a warp.
#include <algorithm>
#include <cstdio>

#include "sanitizer.h"
#include "state.h"

namespace kernwright::emulator {

namespace {

std::string at(Place place) {
  return std::string(place.file) + ":" + std::to_string(place.line);
}

[[noreturn]] void diverge(std::string text, Place place) {
  Fault fault;
  fault.kind = FaultKind::divergence;
  fault.text = std::move(text);
  fault.place = place;
  fail(std::move(fault));
}

std::string hex(unsigned value) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", value);
  return text;
}

void complete(Cta& cta, Barrier& barrier) {
  barrier.result = static_cast<int>(barrier.trues);
  for (unsigned warp = 0; warp < cta.warps.size(); ++warp)
    for (std::uint32_t lanes = barrier.waiting[warp]; lanes != 0; lanes &= lanes - 1)
      make_ready(cta, warp * WARP + static_cast<unsigned>(__builtin_ctz(lanes)));
  barrier.participants = {};
  barrier.waiting = {};
  barrier.arrived = barrier.expected = barrier.trues = 0;
  ++barrier.generation;
}

// Counts the running thread in; true if it was the last one.
bool arrive(Cta& cta, Barrier& barrier, unsigned id, unsigned expected, bool whole_block, Place place) {
  const unsigned warp = cta.current / WARP, bit = 1u << cta.current % WARP;
  if (barrier.arrived == 0) {
    barrier.first = place;
    barrier.expected = expected;
  } else if (whole_block && barrier.first.line != place.line) {
    diverge("some threads of the CTA wait at __syncthreads in line " + std::to_string(barrier.first.line) +
                " while others reach the one in line " + std::to_string(place.line),
            place);
  } else if (!whole_block && barrier.expected != expected) {
    diverge("barrier " + std::to_string(id) + " is used with " + std::to_string(expected) + " threads here and with " +
                std::to_string(barrier.expected) + " at " + at(barrier.first),
            place);
  }
  if (barrier.participants[warp] & bit)
    diverge("a thread arrives twice at barrier " + std::to_string(id) + " before it is complete", place);
  barrier.participants[warp] |= bit;
  ++barrier.arrived;
  sanitizer::release(&barrier.token[barrier.generation & 1]);
  return barrier.arrived == (whole_block ? cta.live : expected);
}

void pass(Cta& cta, Barrier& barrier, unsigned id, bool last, bool waits, Place place) {
  const unsigned generation = barrier.generation;
  if (last) {
    complete(cta, barrier);
    yield_point();
  } else if (waits) {
    barrier.waiting[cta.current / WARP] |= 1u << cta.current % WARP;
    wait_here(Waiting::barrier, place, nullptr, id);
  }
  if (waits) sanitizer::acquire(&barrier.token[generation & 1]);
}

std::uint64_t extreme(const Cta& cta, unsigned base, std::uint32_t lanes, Exchange kind) {
  bool first = true;
  std::uint32_t result = 0;
  for (; lanes != 0; lanes &= lanes - 1) {
    const auto value = static_cast<std::uint32_t>(cta.fibers[base + static_cast<unsigned>(__builtin_ctz(lanes))].value);
    const auto sign = static_cast<std::int32_t>(value), best = static_cast<std::int32_t>(result);
    switch (kind) {
      case Exchange::add: result += value; break;
      case Exchange::bit_and: result = first ? value : result & value; break;
      case Exchange::bit_or: result |= value; break;
      case Exchange::bit_xor: result ^= value; break;
      case Exchange::min_signed: if (first || sign < best) result = value; break;
      case Exchange::max_signed: if (first || sign > best) result = value; break;
      case Exchange::min_unsigned: if (first || value < result) result = value; break;
      default: if (first || value > result) result = value; break;
    }
    first = false;
  }
  return result;
}

std::uint64_t shuffled(const Cta& cta, unsigned base, const Collective& open, unsigned lane) {
  const Fiber& fiber = cta.fibers[base + lane];
  const unsigned width = static_cast<unsigned>(fiber.width), argument = static_cast<unsigned>(fiber.argument);
  const unsigned low = lane & ~(width - 1), high = low + width - 1;
  unsigned source = lane;
  switch (open.kind) {
    case Exchange::shuffle: source = low | (argument & (width - 1)); break;
    case Exchange::shuffle_up: source = argument > lane - low ? lane : lane - argument; break;
    case Exchange::shuffle_down: source = argument > high - lane ? lane : lane + argument; break;
    default: source = (lane ^ argument) > high ? lane : lane ^ argument; break;
  }
  if (!(open.arrived >> source & 1))
    diverge("a shuffle with mask " + hex(open.mask) + " reads lane " + std::to_string(source) +
                ", which doesn't take part, into lane " + std::to_string(lane),
            open.place);
  return cta.fibers[base + source].value;
}

std::uint64_t voted(const Cta& cta, unsigned base, const Collective& open, unsigned lane) {
  std::uint32_t same = 0, trues = 0;
  for (std::uint32_t lanes = open.arrived; lanes != 0; lanes &= lanes - 1) {
    const unsigned other = static_cast<unsigned>(__builtin_ctz(lanes));
    const std::uint64_t value = cta.fibers[base + other].value;
    if (value == cta.fibers[base + lane].value) same |= 1u << other;
    if (value != 0) trues |= 1u << other;
  }
  if (open.kind == Exchange::ballot) return trues;
  if (open.kind == Exchange::match_any) return same;
  return same == open.arrived ? same : 0;
}

void deliver(Cta& cta, unsigned warp, const Collective& open) {
  const unsigned base = warp * WARP;
  for (std::uint32_t lanes = open.arrived; lanes != 0; lanes &= lanes - 1) {
    const unsigned lane = static_cast<unsigned>(__builtin_ctz(lanes));
    Fiber& fiber = cta.fibers[base + lane];
    if (open.kind >= Exchange::shuffle && open.kind <= Exchange::shuffle_xor)
      fiber.result = shuffled(cta, base, open, lane);
    else if (open.kind >= Exchange::ballot && open.kind <= Exchange::match_all)
      fiber.result = voted(cta, base, open, lane);
    else if (open.kind != Exchange::sync)
      fiber.result = extreme(cta, base, open.arrived, open.kind);
    if (fiber.state == State::waiting) make_ready(cta, base + lane);
  }
}

bool close_if_complete(Cta& cta, unsigned warp_index, std::size_t position) {
  Warp& warp = cta.warps[warp_index];
  const Collective open = warp.open[position];
  if (open.arrived != (open.mask & warp.live)) return false;
  warp.open[position] = warp.open.back();
  warp.open.pop_back();
  if (open.kind == Exchange::sync) ++warp.generation;
  deliver(cta, warp_index, open);
  return true;
}

std::size_t join(Warp& warp, Exchange kind, unsigned mask, unsigned lane, Place place) {
  if (!(mask >> lane & 1))
    diverge("lane " + std::to_string(lane) + " isn't in the mask " + hex(mask) + " that it calls with", place);
  for (std::size_t i = 0; i < warp.open.size(); ++i) {
    Collective& open = warp.open[i];
    if (open.mask == mask && open.kind == kind) {
      open.arrived |= 1u << lane;
      return i;
    }
    // Others may be in another operation and join this one later, unless they wait for this very lane.
    if ((open.mask >> lane & 1) && (open.arrived & mask))
      diverge("lane " + std::to_string(lane) + " calls with mask " + hex(mask) + " while other lanes wait for " +
                  (open.mask == mask ? "another operation" : "an operation with mask " + hex(open.mask)) + " at " +
                  at(open.place),
              place);
  }
  warp.open.push_back(Collective{kind, mask, 1u << lane, place});
  return warp.open.size() - 1;
}

}  // namespace

int block_barrier(Reduction reduction, bool predicate, Place place) {
  Cta& cta = *current_cta;
  Barrier& barrier = cta.barriers[0];
  barrier.trues += predicate;
  const bool last = arrive(cta, barrier, 0, 0, true, place);
  const int everyone = static_cast<int>(cta.live);
  pass(cta, barrier, 0, last, true, place);
  switch (reduction) {
    case Reduction::all: return barrier.result == everyone;
    case Reduction::any: return barrier.result != 0;
    default: return barrier.result;
  }
}

void named_barrier(unsigned id, unsigned threads, bool waits, Place place) {
  Cta& cta = *current_cta;
  if (id >= BARRIERS) diverge("barrier " + std::to_string(id) + " doesn't exist; a CTA has 0 to 15", place);
  if (threads == 0 || threads % WARP != 0 || threads > cta.grid->thread_count)
    diverge("barrier " + std::to_string(id) + " is given " + std::to_string(threads) +
                " threads; it takes a multiple of 32, up to the CTA's " + std::to_string(cta.grid->thread_count),
            place);
  Barrier& barrier = cta.barriers[id];
  const bool last = arrive(cta, barrier, id, threads, false, place);
  pass(cta, barrier, id, last, waits, place);
}

std::uint64_t warp_exchange(Exchange kind, unsigned mask, std::uint64_t value, int argument, int width, Place place) {
  Cta& cta = *current_cta;
  const unsigned index = cta.current / WARP, lane = cta.current % WARP;
  Warp& warp = cta.warps[index];
  Fiber& self = cta.fiber();
  self.value = value;
  self.argument = argument;
  self.width = width;
  if (width <= 0 || width > 32 || (width & (width - 1)) != 0)
    diverge("a shuffle of width " + std::to_string(width) + "; it must be a power of two up to 32", place);
  const std::size_t position = join(warp, kind, mask, lane, place);
  char* token = &warp.token[warp.generation & 1];
  if (kind == Exchange::sync) sanitizer::release(token);  // shuffles and votes order no memory
  if (close_if_complete(cta, index, position))
    yield_point();
  else
    wait_here(Waiting::warp, place, nullptr, mask);
  if (kind == Exchange::sync) sanitizer::acquire(token);
  return self.result;
}

unsigned active_mask() {
  const Cta& cta = *current_cta;
  return cta.warps[cta.current / WARP].live;
}

// A thread has ended: barriers and warps no longer wait for it.
void threads_left(Cta& cta, unsigned fiber) {
  const unsigned index = fiber / WARP;
  Warp& warp = cta.warps[index];
  warp.live &= ~(1u << fiber % WARP);
  for (std::size_t i = 0; i < warp.open.size();)
    if (!close_if_complete(cta, index, i)) ++i;
  Barrier& barrier = cta.barriers[0];
  if (barrier.arrived != 0 && barrier.expected == 0 && barrier.arrived == cta.live) complete(cta, barrier);
}

}  // namespace kernwright::emulator
