#include "executor/cpu_quota.hpp"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <vector>

namespace engine {
namespace {

// A mounted hierarchy of control groups that can limit CPU time.
struct Hierarchy {
  std::string root;  // the group that is mounted
  std::string folder;
  bool is_unified;  // version 2
};

bool has_item(const std::string& list, const std::string& wanted) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    if (item == wanted) return true;
  }
  return false;
}

// A line of mountinfo: number, parent, device, root, folder, options, optional fields, "-", type, source, options.
std::vector<Hierarchy> hierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream head(line.substr(0, dash)), tail(line.substr(dash + 3));
    std::string number, parent, device, type, source, options;
    Hierarchy hierarchy;
    if (!(head >> number >> parent >> device >> hierarchy.root >> hierarchy.folder)) continue;
    if (!(tail >> type >> source >> options)) continue;
    hierarchy.is_unified = type == "cgroup2";
    if (hierarchy.is_unified || (type == "cgroup" && has_item(options, "cpu"))) found.push_back(hierarchy);
  }
  return found;
}

// The group of this process in a hierarchy: a line is number:controllers:group, and 0::group in version 2.
std::string group_in(const Hierarchy& hierarchy, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (hierarchy.is_unified ? controllers.empty() : has_item(controllers, "cpu")) return line.substr(second + 1);
  }
  return "/";
}

double quota_of(const std::string& folder, bool is_unified) {
  double quota = 0, period = 0;
  if (is_unified) {
    std::ifstream file(folder + "/cpu.max");  // "max" where there is no quota
    if (!(file >> quota >> period)) return 0;
  } else {
    std::ifstream quota_file(folder + "/cpu.cfs_quota_us"), period_file(folder + "/cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return 0;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

double cpu_quota(const std::string& root) {
  double least = 0;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    // In a container, the group's path may be the host's, of which only the part below the mounted group is visible.
    std::string group = group_in(hierarchy, root);
    if (hierarchy.root != "/" && group.compare(0, hierarchy.root.size(), hierarchy.root) == 0) {
      group.erase(0, hierarchy.root.size());
    }
    if (group.find("/..") != std::string::npos) group.clear();  // outside of what is mounted
    for (;;) {
      while (!group.empty() && group.back() == '/') group.pop_back();
      const double quota = quota_of(root + hierarchy.folder + group, hierarchy.is_unified);
      if (quota > 0) least = least > 0 ? std::min(least, quota) : quota;
      if (group.empty()) break;
      group.erase(group.rfind('/'));
    }
  }
  return least;
}

}  // namespace engine
