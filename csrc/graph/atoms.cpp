#include "graph/atoms.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>

#include "graph/components.hpp"
#include "graph/errors.hpp"

namespace engine::graph {
namespace {

// Numbers groups by their first nodes.
Atoms renumbered(const std::vector<Node>& group, Node groups) {
  Atoms atoms;
  atoms.of.resize(group.size());
  std::vector<Node> number_of(static_cast<std::size_t>(groups), -1);
  for (std::size_t node = 0; node < group.size(); ++node) {
    Node& number = number_of[group[node]];
    if (number < 0) number = atoms.count++;
    atoms.of[node] = number;
  }
  return atoms;
}

Atoms as_given(const Dag& dag, Span<std::int64_t> numbers, Span<std::int64_t> affinity) {
  std::unordered_map<std::int64_t, Node> first;
  std::vector<Node> group(numbers.size());
  for (Node node = 0; node < dag.nodes(); ++node) {
    group[node] = node;
    if (numbers[node] < 0) continue;
    const Node named = first.emplace(numbers[node], node).first->second;
    group[node] = named;
    if (affinity[named] == affinity[node]) continue;
    throw PartitionError("atom " + std::to_string(numbers[node]) + " has node " + std::to_string(named) +
                         " of device " + std::to_string(affinity[named]) + " and node " + std::to_string(node) +
                         " of device " + std::to_string(affinity[node]) + "; assign all its nodes to one device");
  }
  return renumbered(group, dag.nodes());
}

// A shortest walk over atoms of a component that leaves `start`'s atom and returns to it, as text.
std::string describe_walk(const Dag& dag, const Atoms& atoms, const std::vector<Node>& component, Node start,
                          Span<std::int64_t> affinity) {
  std::vector<Node> atom_members(static_cast<std::size_t>(dag.nodes()));
  std::vector<Node> begin(static_cast<std::size_t>(atoms.count) + 2);
  for (const Node atom : atoms.of) ++begin[static_cast<std::size_t>(atom) + 2];
  for (Node atom = 1; atom <= atoms.count; ++atom) begin[atom + 1] += begin[atom];
  for (Node node = 0; node < dag.nodes(); ++node) {
    atom_members[static_cast<std::size_t>(begin[static_cast<std::size_t>(atoms.of[node]) + 1]++)] = node;
  }
  std::vector<Edge> entered(static_cast<std::size_t>(atoms.count), {-1, -1});  // the edge into each atom
  std::vector<Node> queue{atoms.of[start]};
  for (std::size_t done = 0; done < queue.size() && entered[queue[0]].to < 0; ++done) {
    for (Node i = begin[queue[done]]; i < begin[queue[done] + 1]; ++i) {
      for (const Node next : dag.successors(atom_members[i])) {
        const Node atom = atoms.of[next];
        if (atom == queue[done] || component[atom] != component[queue[0]] || entered[atom].to >= 0) continue;
        entered[atom] = {atom_members[i], next};
        queue.push_back(atom);
      }
    }
  }
  // Backwards: into each atom, out of its predecessor.
  std::vector<Edge> steps;
  Node atom = queue[0];
  do {
    steps.push_back(entered[atom]);
    atom = atoms.of[entered[atom].from];
  } while (atom != queue[0]);
  std::reverse(steps.begin(), steps.end());
  std::string text;
  const auto name = [&](Node node) {
    return std::to_string(node) + " (device " + std::to_string(affinity[node]) + ")";
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (i == 0) text += name(steps[i].from);
    if (i > 0 && steps[i].from != steps[i - 1].to) text += " with " + name(steps[i].from);
    text += " -> " + name(steps[i].to);
  }
  return text;
}

}  // namespace

Atoms group_atoms(const Dag& dag, Span<std::int64_t> numbers, Span<std::int64_t> affinity) {
  const Atoms atoms = as_given(dag, numbers, affinity);
  std::vector<Edge> edges;
  for (const Edge& edge : dag.edges()) {
    if (atoms.of[edge.from] != atoms.of[edge.to]) edges.push_back({atoms.of[edge.from], atoms.of[edge.to]});
  }
  // A node is between nodes of one atom if and only if its atom is on a cycle with that atom.
  const Components components = strong_components(atoms.count, Adjacency(atoms.count, edges, &Edge::from));
  if (components.count == atoms.count) return atoms;
  std::vector<Node> first(static_cast<std::size_t>(components.count), -1);
  std::vector<Node> hull(atoms.of.size());
  for (Node node = 0; node < dag.nodes(); ++node) {
    hull[node] = components.of[atoms.of[node]];
    Node& named = first[hull[node]];
    if (named < 0) named = node;
    if (affinity[named] == affinity[node]) continue;
    throw PartitionError("an atom cannot stay whole: a path leaves it and returns to it, " +
                         describe_walk(dag, atoms, components.of, named, affinity) +
                         "; assign the nodes in between to its device, or split the atom");
  }
  return renumbered(hull, components.count);
}

}  // namespace engine::graph
