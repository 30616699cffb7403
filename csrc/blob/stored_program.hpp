// Programs in blobs: the calls that build their plans, as JSON, so that running a blob needs neither a graph nor a
// compiler. Plans are built from it with all checks of PlanBuilder: it is data, and may be forged.
//
// `engine_cpu.stored_program` writes it, and imports by this reader, as the C runtime does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "blob/element_types.hpp"
#include "blob/json.hpp"
#include "executor/plan.hpp"

namespace engine {

// A part of a blob is not as the engine writes it; the message says where and why.
class StoredProgramError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Identifies what the attributes of kernels, and this format, mean. Programs have the numbers of opcodes.
const std::string& program_format();

// The version of the formats in which kernels expect packed weights, and of their choice. Increment it whenever one
// changes: blobs contain packed weights, and would be misread by another version.
constexpr const char* kPackedWeightFormats = "6";

// The type and the shape of a value.
struct ValueForm {
  const ElementType* type;
  std::vector<std::int64_t> shape;

  // Throws PlanError if it does not fit into an address space.
  std::size_t bytes() const;
  bool operator==(const ValueForm& other) const { return type == other.type && shape == other.shape; }
  bool operator!=(const ValueForm& other) const { return !(*this == other); }
  std::string text() const;
};

// Throws StoredProgramError for a type that is unknown, or has no fixed size.
ValueForm read_form(std::string_view type, const JsonValue& shape);

// Memory of a blob's section, or a part of it.
struct StoredBytes {
  const std::byte* data = nullptr;
  std::size_t size = 0;
  std::shared_ptr<const void> owner;
};

// Returns the content of a section, which is verified. Throws what the caller of `build` expects.
using FindSection = std::function<StoredBytes(const std::string& name)>;

struct BuiltSegment {
  std::shared_ptr<const Plan> plan;
  std::vector<std::size_t> reads, writes;  // slots
  std::vector<ValueForm> inputs, outputs;
  std::vector<std::pair<std::string, std::string>> nodes;  // of each step: the name, and the operator
  std::vector<std::size_t> live_bytes;  // of each step: bytes of the arena that it or later ones need
  std::vector<std::pair<const std::byte*, std::size_t>> constants;  // that steps read in place
  std::string largest;                                              // the node with the largest value
  std::int64_t largest_bytes = 0;
};

// Plans in the order of their execution over a table of values: its first slots are the inputs.
struct BuiltProgram {
  struct Constant {
    std::size_t slot;
    ValueForm form;
    StoredBytes bytes;
  };

  std::size_t inputs = 0, slots = 0;
  std::vector<Constant> constants;
  std::vector<BuiltSegment> segments;
  std::vector<std::size_t> outputs;  // slots
};

class StoredProgram {
 public:
  // Throws StoredProgramError, also for another format.
  explicit StoredProgram(std::string_view text);

  // The operations, those that the reference evaluator runs, the work of the former, and of the latter.
  const std::vector<std::int64_t>& counts() const { return counts_; }
  // The kernels of its plans: their families, and the instruction sets.
  const std::vector<std::pair<std::string, std::string>>& rows() const { return rows_; }
  // Those that this build leaves out, as "gemm for avx512". Plans would otherwise get other kernels, which may read
  // weights that are packed in another way.
  std::vector<std::string> missing_rows() const;

  // Builds the plans. `inputs` and `outputs` are the network's; the program has to fit them.
  // Throws StoredProgramError, PlanError, std::bad_alloc, and what `find` throws.
  BuiltProgram build(const std::vector<ValueForm>& inputs, const std::vector<ValueForm>& outputs, Isa isa,
                     const FindSection& find) const;

 private:
  JsonDocument document_;
  std::vector<std::int64_t> counts_;
  std::vector<std::pair<std::string, std::string>> rows_;
};

}  // namespace engine
