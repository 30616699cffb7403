#include "graph/devices.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "graph/errors.hpp"

namespace engine::graph {
namespace {

// More than any machine has; the choice for each run examines all devices.
constexpr std::size_t kMaxDevices = 1024;

}  // namespace

Devices number_devices(const Dag& dag, Span<std::int64_t> affinity) {
  const auto nodes = static_cast<std::size_t>(dag.nodes());
  if (affinity.size() != nodes) {
    throw PartitionError("affinity has " + std::to_string(affinity.size()) + " numbers; expected one for each of " +
                         std::to_string(nodes) + " nodes");
  }
  Devices devices;
  devices.of_node.resize(nodes);
  std::unordered_map<std::int64_t, std::int32_t> number_of;
  for (std::size_t node = 0; node < nodes; ++node) {
    if (affinity[node] < 0) {
      throw PartitionError("affinity of node " + std::to_string(node) + " is " + std::to_string(affinity[node]) +
                           "; expected the index of a device, 0 or more");
    }
    const auto [known, is_new] = number_of.emplace(affinity[node], static_cast<std::int32_t>(devices.used.size()));
    if (is_new) devices.used.push_back(affinity[node]);
    devices.of_node[node] = known->second;
  }
  if (devices.used.size() > kMaxDevices) {
    throw PartitionError("affinity names " + std::to_string(devices.used.size()) + " devices; expected at most " +
                         std::to_string(kMaxDevices));
  }
  // Ascending, so that results do not depend on the order of devices in the graph.
  std::sort(devices.used.begin(), devices.used.end());
  std::vector<std::int32_t> place(devices.used.size());
  for (std::size_t i = 0; i < devices.used.size(); ++i) {
    place[number_of[devices.used[i]]] = static_cast<std::int32_t>(i);
  }
  for (std::int32_t& number : devices.of_node) number = place[number];
  return devices;
}

}  // namespace engine::graph
