// Where everybody waits, one line for each group of threads that wait at the same place.
#include <map>

#include "state.h"

namespace kernwright::emulator {

namespace {

std::string what(const Wait& wait) {
  const std::string line = std::string(" (") + wait.place.file + ":" + std::to_string(wait.place.line) + ")";
  switch (wait.kind) {
    case Waiting::barrier: return (wait.id == 0 ? "at barrier 0, __syncthreads" : "at barrier " + std::to_string(wait.id)) + line;
    case Waiting::warp: return "for other lanes of the warp" + line;
    case Waiting::poll: return "for another value of " + describe_address(wait.address) + line;
    default: return "for the end of the grid before" + line;
  }
}

void describe_cta(const Cta& cta, std::vector<std::string>& lines) {
  std::map<std::string, std::pair<unsigned, const Fiber*>> groups;
  for (const Fiber& fiber : cta.fibers) {
    if (fiber.state == State::done) continue;
    auto& group = groups[fiber.state == State::waiting ? what(fiber.wait) : "for their turn"];
    if (group.first++ == 0) group.second = &fiber;
  }
  for (const auto& [text, group] : groups) {
    const Index3& first = group.second->thread;
    lines.push_back("rank " + std::to_string(cta.grid->rank) + ", " + cta.grid->symbol + ", CTA (" +
                    std::to_string(cta.block.x) + "," + std::to_string(cta.block.y) + "," +
                    std::to_string(cta.block.z) + "): " + std::to_string(group.first) +
                    (group.first == 1 ? " thread, (" : " threads, the first is (") + std::to_string(first.x) + "," +
                    std::to_string(first.y) + "," + std::to_string(first.z) + "), waiting " + text);
  }
}

}  // namespace

void describe_waits(std::vector<std::string>& lines) {
  if (world->ctas.empty()) {
    describe_cta(*current_cta, lines);
    return;
  }
  for (const Cta* cta : world->ctas)
    if (cta->live != 0) describe_cta(*cta, lines);
}

}  // namespace kernwright::emulator
