#include "blob/stored_program.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "executor/kernel_rows.hpp"
#include "executor/memory.hpp"
#include "kernels/prepare/codes.hpp"

namespace engine {
namespace {

constexpr std::size_t kAlignment = 64;  // of constants
constexpr std::int64_t kMaxSlots = INT32_MAX;
// A thousand times those of the largest networks; Python's numbers and texts without a limit would take more.
constexpr JsonLimits kLimits{64, std::size_t{1} << 24, true};

std::uint32_t crc32(std::string_view text) {
  std::uint32_t crc = ~0U;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

std::size_t index_of(const JsonValue& value, std::size_t count, const char* what) {
  const std::int64_t index = value.integer(0, kMaxSlots);
  if (static_cast<std::size_t>(index) >= count) {
    throw StoredProgramError("there is no " + std::string(what) + " " + std::to_string(index) + "; there are " +
                             std::to_string(count));
  }
  return static_cast<std::size_t>(index);
}

std::vector<ValueForm> read_forms(const JsonValue& list) {
  std::vector<ValueForm> forms;
  for (const JsonValue& item : list.items()) {
    const auto form = item.items(2);
    forms.push_back(read_form(form[0].text(), form[1]));
  }
  return forms;
}

std::vector<std::pair<std::string, std::string>> read_pairs(const JsonValue& list) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const JsonValue& item : list.items()) {
    const auto pair = item.items(2);
    pairs.emplace_back(pair[0].text(), pair[1].text());
  }
  return pairs;
}

Attributes::Value read_attribute(const JsonValue& value) {
  switch (value.kind()) {
    case JsonKind::boolean:
      return static_cast<std::int64_t>(value.boolean());
    case JsonKind::real:
      return value.real();
    case JsonKind::text:
      return std::string(value.text());
    case JsonKind::list:
      break;
    default:
      return value.integer();
  }
  const std::vector<JsonValue> items = value.items();
  const auto is_integral = [](const JsonValue& item) { return !item.is(JsonKind::real); };
  if (std::all_of(items.begin(), items.end(), is_integral)) {
    std::vector<std::int64_t> integers;
    integers.reserve(items.size());
    for (const JsonValue& item : items) {
      integers.push_back(item.is(JsonKind::boolean) ? static_cast<std::int64_t>(item.boolean()) : item.integer());
    }
    return integers;
  }
  std::vector<double> reals;
  reals.reserve(items.size());
  for (const JsonValue& item : items) {
    reals.push_back(item.is(JsonKind::boolean) ? static_cast<double>(item.boolean()) : item.real());
  }
  return reals;
}

// The parts of sections that plans read, aligned for kernels. Each is made once, since plans share them.
class Parts {
 public:
  explicit Parts(const FindSection& find) : find_(find) {}

  const StoredBytes& part(const JsonValue& section, const JsonValue& begin, const JsonValue& size) {
    return part(section.text(), begin.integer(0), static_cast<std::size_t>(size.integer(0)));
  }

  const StoredBytes& part(std::string_view section, std::int64_t begin, std::size_t size) {
    const auto [at, is_new] = parts_.try_emplace({std::string(section), begin, size});
    if (is_new) at->second = made(std::string(section), static_cast<std::size_t>(begin), size);
    return at->second;
  }

 private:
  StoredBytes made(const std::string& name, std::size_t begin, std::size_t size) {
    alignas(kAlignment) static constexpr std::byte kNone[kAlignment] = {};
    if (size == 0) return {kNone, 0, nullptr};
    auto found = sections_.find(name);
    if (found == sections_.end()) found = sections_.emplace(name, find_(name)).first;
    const StoredBytes& section = found->second;
    if (begin > section.size || size > section.size - begin) {
      throw StoredProgramError("an array of " + std::to_string(size) + " bytes at " + std::to_string(begin) +
                               " extends beyond section \"" + name.substr(0, 80) + "\" of " +
                               std::to_string(section.size) + " bytes");
    }
    const std::byte* data = section.data + begin;
    if (reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0) return {data, size, section.owner};
    const auto copy = std::make_shared<AlignedMemory>(size, kAlignment);
    std::memcpy(copy->data(), data, size);
    return {copy->data(), size, copy};
  }

  const FindSection& find_;
  std::map<std::string, StoredBytes> sections_;
  std::map<std::tuple<std::string, std::int64_t, std::size_t>, StoredBytes> parts_;
};

// Makes the calls of one plan. Buffers are numbered in the order of their calls, without the temporaries of steps.
class PlanReader {
 public:
  PlanReader(Isa isa, Parts& parts) : builder_(isa), parts_(parts) {}

  std::shared_ptr<const Plan> read(const JsonValue& calls) {
    for (const JsonValue& call : calls.items()) {
      const std::vector<JsonValue> given = call.items();
      const std::string_view kind = given.empty() ? "" : given[0].text();
      const std::size_t expected = kind == "step" ? 6 : kind == "constant" || kind == "view" ? 4 : 3;
      if (given.size() != expected) {
        throw StoredProgramError("a call of a plan, of \"" + std::string(kind.substr(0, 40)) + "\", has " +
                                 std::to_string(given.size()) + " items; expected " + std::to_string(expected));
      }
      if (kind == "step") {
        step(given);
      } else if (kind == "constant") {
        const StoredBytes& bytes = parts_.part(given[1], given[2], given[3]);
        constants_.emplace_back(bytes.data, bytes.size);
        added(builder_.add_constant(bytes.data, bytes.size, bytes.owner));
      } else if (kind == "view") {
        view(given);
      } else {
        sized(kind, given);
      }
    }
    return builder_.build();
  }

  // The constants that steps read in place.
  const std::vector<std::pair<const std::byte*, std::size_t>>& constants() const { return constants_; }

  // For each step, the bytes of buffers that were written and are still needed. Linear.
  std::vector<std::size_t> live_bytes() const {
    struct Span {
      std::size_t first = 0, last = 0;
      bool is_used = false;
    };
    std::vector<Span> spans(buffers_.size());
    for (std::size_t number = 0; number < steps_.size(); ++number) {
      for (const std::size_t used : steps_[number]) {
        Span& span = spans[buffers_[used].root];
        if (!span.is_used) span = {number, number, true};
        span.last = number;
      }
    }
    std::vector<std::size_t> begun(steps_.size() + 1, 0), ended(steps_.size() + 1, 0);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (!spans[i].is_used) continue;
      begun[spans[i].first] += buffers_[i].arena_bytes;
      ended[spans[i].last + 1] += buffers_[i].arena_bytes;
    }
    std::vector<std::size_t> live(steps_.size());
    std::size_t now = 0;
    for (std::size_t number = 0; number < live.size(); ++number) {
      now += begun[number] - ended[number];
      live[number] = now;
    }
    return live;
  }

 private:
  struct Called {
    BufferId id;
    std::size_t root;             // the number of the call that made its memory
    std::size_t arena_bytes = 0;  // 0 for memory outside of the arena
  };

  void sized(std::string_view kind, const std::vector<JsonValue>& given) {
    const auto bytes = static_cast<std::size_t>(given[1].integer(0));
    const auto alignment = static_cast<std::size_t>(given[2].integer(0));
    if (kind == "input") return added(builder_.add_input(bytes, alignment));
    if (kind == "output") return added(builder_.add_output(bytes, alignment));
    // A state is memory of a variable in place, which only families have.
    if (kind != "buffer") throw StoredProgramError("a plan has no " + given[0].shown());
    added(builder_.add_buffer(bytes, alignment));
    buffers_.back().arena_bytes = bytes;
  }

  void view(const std::vector<JsonValue>& given) {
    const std::size_t of = index_of(given[1], buffers_.size(), "buffer");
    const auto offset = static_cast<std::size_t>(given[2].integer(0));
    added(builder_.add_view(buffers_[of].id, offset, static_cast<std::size_t>(given[3].integer(0))));
    buffers_.back().root = buffers_[of].root;
  }

  void step(const std::vector<JsonValue>& given) {
    const std::string kernel(given[1].text());
    if (kernel == "extension") throw StoredProgramError("a step calls a kernel of an extension");
    steps_.emplace_back();
    const std::vector<BufferId> inputs = operands(given[2]), outputs = operands(given[3]);
    Attributes attributes;
    for (const auto& [name, value] : given[4].entries()) {
      try {
        attributes.set(std::string(name), read_attribute(value));
      } catch (const JsonError& error) {
        throw StoredProgramError("attribute \"" + std::string(name.substr(0, 80)) + "\" of a step of " +
                                 kernel.substr(0, 80) + ": " + error.what());
      }
    }
    builder_.add_step(kernel, inputs, outputs, attributes, std::string(given[5].text()));
  }

  std::vector<BufferId> operands(const JsonValue& list) {
    std::vector<BufferId> ids;
    for (const JsonValue& item : list.items()) {
      const std::size_t number = index_of(item, buffers_.size(), "buffer");
      steps_.back().push_back(number);
      ids.push_back(buffers_[number].id);
    }
    return ids;
  }

  void added(BufferId id) { buffers_.push_back({id, buffers_.size()}); }

  PlanBuilder builder_;
  Parts& parts_;
  std::vector<Called> buffers_;
  std::vector<std::vector<std::size_t>> steps_;  // the buffers of each
  std::vector<std::pair<const std::byte*, std::size_t>> constants_;
};

// The values of a program so far: slots are numbered in order, so that none is written twice.
class Values {
 public:
  explicit Values(const std::vector<ValueForm>& inputs) : forms_(inputs) {}

  std::size_t add(const JsonValue& slot, const ValueForm& form) {
    const std::int64_t number = slot.integer(0, kMaxSlots);
    if (static_cast<std::size_t>(number) != forms_.size()) {
      throw StoredProgramError("value " + std::to_string(number) + " where " + std::to_string(forms_.size()) +
                               " was expected");
    }
    forms_.push_back(form);
    return static_cast<std::size_t>(number);
  }

  // The slots in a list, whose values have to have these forms.
  std::vector<std::size_t> read(const JsonValue& list, const std::vector<ValueForm>& expected, const char* what) const {
    std::vector<std::size_t> slots;
    const std::vector<JsonValue> items = list.items(expected.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      slots.push_back(index_of(items[i], forms_.size(), "value"));
      if (forms_[slots[i]] != expected[i]) {
        throw StoredProgramError(std::string(what) + " is " + forms_[slots[i]].text() + "; expected " +
                                 expected[i].text());
      }
    }
    return slots;
  }

  std::size_t count() const { return forms_.size(); }

 private:
  std::vector<ValueForm> forms_;
};

void check_sizes(const std::vector<Buffer>& buffers, const std::vector<ValueForm>& forms, const char* what) {
  bool fits = buffers.size() == forms.size();
  for (std::size_t i = 0; fits && i < forms.size(); ++i) fits = buffers[i].bytes == forms[i].bytes();
  if (!fits) throw StoredProgramError("the sizes of a plan's " + std::string(what) + " do not match their types");
}

BuiltSegment read_segment(const JsonValue& read, Isa isa, Parts& parts, Values& values) {
  BuiltSegment made;
  made.inputs = read_forms(read.at("inputs"));
  made.outputs = read_forms(read.at("outputs"));
  PlanReader reader(isa, parts);
  made.plan = reader.read(read.at("calls"));
  made.live_bytes = reader.live_bytes();
  made.constants = reader.constants();
  check_sizes(made.plan->inputs, made.inputs, "inputs");
  check_sizes(made.plan->outputs, made.outputs, "outputs");
  made.nodes = read_pairs(read.at("nodes"));
  if (made.nodes.size() != made.plan->steps().size()) {
    throw StoredProgramError("a plan has " + std::to_string(made.plan->steps().size()) + " steps, and names for " +
                             std::to_string(made.nodes.size()));
  }
  const auto largest = read.at("largest").items(2);
  made.largest = largest[0].text();
  made.largest_bytes = largest[1].integer(0);
  made.reads = values.read(read.at("reads"), made.inputs, "a value that a plan reads");
  const auto written = read.at("writes").items(made.outputs.size());
  for (std::size_t i = 0; i < written.size(); ++i) made.writes.push_back(values.add(written[i], made.outputs[i]));
  return made;
}

}  // namespace

const std::string& program_format() {
  static const auto& format = *new std::string([] {
    // The names of the opcodes, whose order csrc/tests/blob_programs.cpp keeps for this version.
    std::set<std::string> names;
    for (const CodeNames& codes : code_names()) {
      if (std::string_view(codes.enumeration) == "Opcode") names.insert(codes.names.begin(), codes.names.end());
    }
    std::string joined;
    for (const std::string& name : names) joined += (joined.empty() ? "" : " ") + name;
    std::array<char, 16> text;
    std::snprintf(text.data(), text.size(), "3-%08x", static_cast<unsigned>(crc32(joined)));
    return std::string(text.data());
  }());
  return format;
}

std::size_t ValueForm::bytes() const {
  return checked_multiply(checked_product(shape), type->bytes);
}

std::string ValueForm::text() const {
  std::string lengths;
  for (const std::int64_t length : shape) lengths += (lengths.empty() ? "" : ",") + std::to_string(length);
  return type->name + ("[" + lengths + "]");
}

ValueForm read_form(std::string_view type, const JsonValue& shape) {
  const ElementType* found = find_element_type(type);
  if (found == nullptr) {
    throw StoredProgramError("a plan has no values of the type \"" + std::string(type.substr(0, 40)) + "\"");
  }
  ValueForm form{found, {}};
  for (const JsonValue& length : shape.items()) form.shape.push_back(length.integer(0));
  return form;
}

StoredProgram::StoredProgram(std::string_view text) try : document_(text, kLimits) {
  const JsonValue root = document_.root();
  const JsonValue format = root.at("format");
  if (!format.is(JsonKind::text) || format.text() != program_format()) {
    throw StoredProgramError("its format is " + format.shown() + ", expected \"" + program_format() + "\"");
  }
  for (const JsonValue& number : root.at("nodes").items(4)) counts_.push_back(number.integer(0));
  rows_ = read_pairs(root.at("rows"));
} catch (const JsonError& error) {
  throw StoredProgramError(error.what());
}

std::vector<std::string> StoredProgram::missing_rows() const {
  std::set<std::pair<std::string_view, std::string_view>> built;
  for (const KernelRow& row : kernel_rows()) {
    if (row.table != nullptr) built.emplace(row.family, isa_name(row.isa));
  }
  std::vector<std::string> missing;
  for (const auto& [family, isa] : rows_) {
    if (built.count({family, isa}) == 0) missing.push_back(family + " for " + isa);
  }
  return missing;
}

BuiltProgram StoredProgram::build(const std::vector<ValueForm>& inputs, const std::vector<ValueForm>& outputs, Isa isa,
                                  const FindSection& find) const {
  try {
    const JsonValue root = document_.root();
    BuiltProgram made;
    made.inputs = inputs.size();
    const JsonValue count = root.at("inputs");
    if (static_cast<std::size_t>(count.integer(0)) != inputs.size()) {
      throw StoredProgramError("it has " + count.shown() + " inputs, the network " + std::to_string(inputs.size()));
    }
    Parts parts(find);
    Values values(inputs);
    for (const JsonValue& item : root.at("constants").items()) {
      const auto given = item.items(5);
      const ValueForm form = read_form(given[1].text(), given[2]);
      const std::size_t slot = values.add(given[0], form);
      made.constants.push_back({slot, form, parts.part(given[3].text(), given[4].integer(0), form.bytes())});
    }
    for (const JsonValue& item : root.at("segments").items()) {
      made.segments.push_back(read_segment(item, isa, parts, values));
    }
    made.outputs = values.read(root.at("outputs"), outputs, "an output");
    made.slots = values.count();
    return made;
  } catch (const JsonError& error) {
    throw StoredProgramError(error.what());
  }
}

}  // namespace engine
