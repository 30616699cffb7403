// The CPU time that control groups allow this process.
#pragma once

#include <string>

namespace engine {

// The smallest quota of the process's control group and of the groups around it, in cores; 0 if none has a quota. Both
// versions of control groups count, since systems mount both. `root` is put before the paths of all files that are
// read.
double cpu_quota(const std::string& root = "");

}  // namespace engine
