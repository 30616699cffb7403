// Expectations, shared by the tests of the executor and of graph algorithms.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace engine {

inline int failures = 0;

inline void expect(bool condition, const std::string& what) {
  if (condition) return;
  if (++failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

// The exit status of a program: 0 if nothing has failed.
inline int report() {
  if (failures > 20) std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}

template <class Error>
void expect_error(const std::string& part, const std::function<void()>& action) {
  try {
    action();
    expect(false, "no error for: " + part);
  } catch (const Error& error) {
    expect(std::string(error.what()).find(part) != std::string::npos, part + " is not in: " + error.what());
  }
}

// Runs named cases, and returns the exit status of the program.
inline int run_cases(const std::vector<std::pair<const char*, void (*)()>>& cases) {
  for (const auto& [name, run] : cases) {
    const int before = failures;
    run();
    std::printf("%s %s\n", failures == before ? "ok    " : "FAILED", name);
    std::fflush(stdout);
  }
  return report();
}

}  // namespace engine
