// Reads JSON that a stranger may have written: strict (RFC 8259, UTF-8, no key twice), with limits, in linear time.
//
// A document is one array of values in the order of the text, so that reading takes one allocation that grows, and no
// recursion; containers know where they end. Numbers keep the difference between integers and others, as Python does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace engine {

// The text is not JSON, exceeds a limit, or has another value than expected. The message says where and what.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JsonLimits {
  std::size_t depth = 64;                     // of objects and lists
  std::size_t values = std::size_t{1} << 20;  // of all kinds; each takes 32 bytes
  bool has_nonfinite = false;                 // whether NaN, Infinity and -Infinity are numbers, as Python writes them
};

enum class JsonKind : std::uint8_t { null, boolean, integer, large_integer, real, text, list, object };

// A value of a document, which has to outlive it. All members throw JsonError for a value of another kind.
class JsonValue;

class JsonDocument {
 public:
  // Throws JsonError, and std::bad_alloc.
  explicit JsonDocument(std::string_view text, const JsonLimits& limits = {});

  JsonValue root() const;

 private:
  friend class JsonValue;
  friend class JsonParser;

  // The values inside a list follow it; inside an object, keys and values in turn.
  struct Node {
    JsonKind kind;
    std::uint32_t count = 0;  // of a container: its items
    union {
      std::int64_t integer;
      double real;
      std::size_t offset;  // of a text in `texts_`
    };
    std::size_t size_or_end = 0;  // of a text: its bytes; of a container: the node behind it
  };

  std::vector<Node> nodes_;
  std::string texts_;
};

class JsonValue {
 public:
  JsonKind kind() const { return node().kind; }
  bool is(JsonKind kind) const { return node().kind == kind; }

  bool boolean() const;
  // A number without a fraction or an exponent that fits into 64 bits.
  std::int64_t integer() const;
  std::int64_t integer(std::int64_t minimum, std::int64_t maximum = INT64_MAX) const;
  double real() const;  // integers are numbers, too
  std::string_view text() const;

  // Of a list or an object.
  std::size_t size() const;
  // The items of a list. Linear.
  std::vector<JsonValue> items() const;
  std::vector<JsonValue> items(std::size_t count) const;
  // The entries of an object in the order of the text.
  std::vector<std::pair<std::string_view, JsonValue>> entries() const;
  // The value of a key. Linear in the number of keys.
  JsonValue at(std::string_view key) const;
  // The same; whether the key is there.
  bool has(std::string_view key) const;

  // The beginning of the value, for messages.
  std::string shown() const;

 private:
  friend class JsonDocument;
  JsonValue(const JsonDocument& document, std::size_t index) : document_(&document), index_(index) {}

  const JsonDocument::Node& node() const { return document_->nodes_[index_]; }
  std::size_t behind() const;
  [[noreturn]] void refuse(const char* expected) const;

  const JsonDocument* document_;
  std::size_t index_;
};

}  // namespace engine
