// Prints the names of the instruction sets that this machine's CPU has, for native_build.py.
#include <cstdio>

#include "executor/cpu_features.hpp"

int main() {
  for (const engine::Isa isa : engine::all_isas())
    if (engine::includes(engine::cpu_features().highest, isa)) std::puts(engine::isa_name(isa));
}
