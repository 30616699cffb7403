// A network that a blob describes: its inputs, outputs, variables and plans. Immutable, so any thread may use it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "blob/stored_program.hpp"
#include "runtime/blob.hpp"

namespace engine {

struct Port {
  std::string name;
  ValueForm form;
  std::size_t bytes;
};

// A value that requests keep: the output `after` of a run is the input `before` of the next one.
struct StoredVariable {
  Port before;
  std::vector<std::byte> initial;  // empty: zeros
};

class Network {
 public:
  // Throws Failure, and std::bad_alloc. `max_threads` of one run; 0: all cores.
  Network(Blob blob, int max_threads);

  // Of the caller.
  const std::vector<Port>& inputs() const { return inputs_; }
  const std::vector<Port>& outputs() const { return outputs_; }
  // The program has an input and an output for each behind those of the caller.
  const std::vector<StoredVariable>& variables() const { return variables_; }
  const BuiltProgram& program() const { return program_; }
  int max_threads() const { return max_threads_; }
  const std::string& where() const { return where_; }

 private:
  void read(Blob& blob);
  void check_host(const Blob& blob) const;
  void read_interface(const Blob& blob);
  void build(Blob& blob);

  std::string where_;
  int max_threads_;
  std::vector<Port> inputs_, outputs_;
  std::vector<StoredVariable> variables_;
  BuiltProgram program_;
};

}  // namespace engine
