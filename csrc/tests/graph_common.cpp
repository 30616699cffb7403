#include "tests/graph_common.hpp"

#include <algorithm>
#include <numeric>

namespace engine::graph {

Case random_case(std::mt19937_64& random, Node most_nodes, int devices) {
  const auto below = [&](std::int64_t bound) { return static_cast<std::int64_t>(random() % bound); };
  Case made;
  made.nodes = static_cast<Node>(1 + below(most_nodes));
  std::vector<Node> name(static_cast<std::size_t>(made.nodes));
  std::iota(name.begin(), name.end(), 0);
  std::shuffle(name.begin(), name.end(), random);
  const std::int64_t reach = 1 + below(made.nodes);
  const std::int64_t wanted = below(3 * made.nodes);
  for (std::int64_t i = 0; i < wanted && made.nodes > 1; ++i) {
    const std::int64_t to = 1 + below(made.nodes - 1);
    const std::int64_t from = std::max<std::int64_t>(0, to - 1 - below(reach));
    made.edges.push_back({name[from], name[to]});
    made.bytes.push_back(below(4) == 0 ? 0 : below(1000));
  }
  const std::int64_t used = 1 + below(devices);
  const std::int64_t block = 1 + below(4);
  made.affinity.resize(name.size());
  for (Node place = 0; place < made.nodes; ++place) {
    made.affinity[name[place]] = block == 1 ? below(used) : place / block % used;
    if (below(8) == 0) made.affinity[name[place]] = below(used);
  }
  return made;
}

}  // namespace engine::graph
