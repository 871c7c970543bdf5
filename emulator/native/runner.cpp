// Runs sanitized objects once, outside of Python. `runner PLAN REPORT` reads what race.py writes.
#include <dlfcn.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "api.h"

namespace {

constexpr double PATIENCE = 60.0;  // seconds; ThreadSanitizer is slow

template <typename Function>
Function find(void* library, const std::string& name) {
  return reinterpret_cast<Function>(dlsym(library, name.c_str()));
}

template <typename T>
T read(std::istream& plan) {
  T value{};
  plan >> value;
  return value;
}

void append_hex(std::vector<unsigned char>& bytes, const std::string& digits) {
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(static_cast<unsigned char>(std::stoul(digits.substr(i, 2), nullptr, 16)));
}

void append_pointer(std::vector<unsigned char>& bytes, const void* pointer) {
  const auto* begin = reinterpret_cast<const unsigned char*>(&pointer);
  bytes.insert(bytes.end(), begin, begin + sizeof pointer);
}

std::vector<void*> read_modules(std::istream& plan, void* world) {
  std::vector<void*> libraries(read<unsigned>(plan));
  for (auto& library : libraries) {
    library = dlopen(read<std::string>(plan).c_str(), RTLD_NOW);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::exit(2);
    }
    kernwright_module(world, find<void* (*)()>(library, "kernwright_shared"),
                      find<void* (*)()>(library, "kernwright_dynamic"));
  }
  return libraries;
}

std::vector<char*> read_buffers(std::istream& plan, void* world) {
  std::vector<char*> buffers(read<unsigned>(plan));
  for (auto& buffer : buffers) {
    const auto name = read<std::string>(plan);
    const auto rank = read<int>(plan);
    const auto bytes = read<std::size_t>(plan);
    const auto access = read<int>(plan);
    const auto file = read<std::string>(plan);
    buffer = static_cast<char*>(kernwright_buffer(world, name.c_str(), rank, bytes, access, 1));
    if (file != "-") std::ifstream(file, std::ios::binary).read(buffer, static_cast<std::streamsize>(bytes));
  }
  return buffers;
}

void read_launch(std::istream& plan, void* world, const std::vector<void*>& libraries,
                 const std::vector<char*>& buffers, const std::string& symbol) {
  kernwright_launch launch{};
  launch.symbol = symbol.c_str();
  launch.module = read<int>(plan);
  launch.call = find<void (*)(void* const*)>(libraries[static_cast<std::size_t>(launch.module)], "kernwright_call_" + symbol);
  launch.rank = read<int>(plan);
  launch.stream = read<int>(plan);
  launch.programmatic = read<int>(plan);
  for (unsigned& size : launch.grid) size = read<unsigned>(plan);
  for (unsigned& size : launch.block) size = read<unsigned>(plan);
  launch.shared_bytes = read<unsigned>(plan);
  launch.argument_count = read<int>(plan);
  std::vector<unsigned char> bytes;
  std::vector<std::uint32_t> ends;
  for (int i = 0; i < launch.argument_count; ++i) {
    if (read<std::string>(plan) == "scalar")
      append_hex(bytes, read<std::string>(plan));
    else
      for (auto pointers = read<unsigned>(plan); pointers > 0; --pointers)
        append_pointer(bytes, buffers[read<unsigned>(plan)]);
    ends.push_back(static_cast<std::uint32_t>(bytes.size()));
  }
  launch.arguments = bytes.data();
  launch.argument_ends = ends.data();
  kernwright_add_launch(world, &launch);
}

}  // namespace

int main(int, char** arguments) {
  std::ifstream plan(arguments[1]);
  const auto seed = read<std::uint64_t>(plan);
  const auto policy = read<int>(plan);
  const auto concurrent = read<int>(plan);
  void* world = kernwright_create(seed, policy, 0xff, concurrent, PATIENCE);
  const auto libraries = read_modules(plan, world);
  const auto buffers = read_buffers(plan, world);
  std::vector<std::string> symbols(read<unsigned>(plan));
  for (auto& symbol : symbols) {
    symbol = read<std::string>(plan);
    read_launch(plan, world, libraries, buffers, symbol);
  }
  std::ofstream(arguments[2]) << kernwright_run(world);
  return 0;
}
