// A family of plans: the same steps for lengths that differ from run to run, such as the number of past tokens.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "executor/plan.hpp"

namespace engine {

using Lengths = std::vector<std::int64_t>;

// An integer that lengths determine: a constant, and multiples of products of up to three lengths.
struct Varying {
  struct Term {
    std::array<std::int32_t, 3> lengths;  // -1: none
    std::int64_t factor;
  };

  std::int64_t constant = 0;
  std::vector<Term> terms;

  bool is_fixed() const { return terms.empty(); }
  // Throws PlanError if the value overflows, or a term names a length that does not exist.
  std::int64_t at(const Lengths& lengths) const;
};

using VaryingAttribute = std::variant<Attributes::Value, Varying, std::vector<Varying>>;
using VaryingAttributes = std::vector<std::pair<std::string, VaryingAttribute>>;

// Collects buffers and steps as PlanBuilder does, and makes their plans for given lengths. What does not vary is
// checked, prepared and laid out once for a room of lengths, which grows by doubling; a plan for other lengths within
// it prepares only the steps that vary. Used by one thread at a time; the plans are immutable. Methods throw PlanError.
class PlanFamily {
 public:
  // `most` has the greatest value of each length.
  PlanFamily(Lengths most, Isa isa, const KernelRegistry& registry = KernelRegistry::built_in());

  // As the methods of PlanBuilder, with identities of this family.
  BufferId add_input(Varying bytes, std::size_t alignment = 1);
  BufferId add_output(Varying bytes, std::size_t alignment = 1);
  BufferId add_state(Varying bytes, std::size_t alignment = 1);
  BufferId add_buffer(Varying bytes, std::size_t alignment = 64);
  // The first `bytes` of memory that has `available` bytes.
  BufferId add_constant(const void* data, std::size_t available, Varying bytes, std::shared_ptr<const void> owner);
  BufferId add_view(BufferId of, Varying offset, Varying bytes);
  void add_step(std::string operation, std::vector<BufferId> inputs, std::vector<BufferId> outputs,
                VaryingAttributes attributes, std::string name = "");

  // The plan for these lengths. The last one is kept.
  std::shared_ptr<const Plan> at(const Lengths& lengths);

 private:
  struct BufferCall {
    BufferKind kind = BufferKind::arena;
    BufferId of = -1;
    Varying offset, bytes;
    std::size_t alignment = 1;
    const void* data = nullptr;
    std::size_t available = 0;
    std::shared_ptr<const void> owner;
  };
  struct StepCall {
    std::string operation;
    std::vector<BufferId> inputs, outputs;
    VaryingAttributes attributes;
    std::string name;
    std::size_t buffers;  // that were added before it
    bool varies;
  };
  struct Layout;

  static BufferCall bound(BufferKind kind, Varying bytes, std::size_t alignment);
  BufferId add(BufferCall call);
  void check_buffer(BufferId id) const;
  void check_lengths(const Lengths& lengths) const;
  std::unique_ptr<Layout> replayed(const Lengths& lengths) const;
  void lay_out(const Lengths& lengths);
  std::shared_ptr<const Plan> rebound(const Lengths& lengths);
  bool resize_buffers(const Lengths& lengths);
  bool prepare_steps(const Lengths& lengths, Plan& plan);

  Lengths most_;
  Isa isa_;
  const KernelRegistry* registry_;
  std::vector<BufferCall> buffers_;
  std::vector<bool> varies_;  // of the buffers
  std::vector<StepCall> steps_;
  std::shared_ptr<Layout> layout_;
  Lengths last_lengths_;
  std::shared_ptr<const Plan> last_;
};

}  // namespace engine
