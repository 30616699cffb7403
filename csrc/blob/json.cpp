#include "blob/json.hpp"

#include <locale.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace engine {
namespace {

constexpr std::size_t kMaxShown = 60;
constexpr std::size_t kMaxNumber = 1024;  // characters

bool is_digit(char c) {
  return '0' <= c && c <= '9';
}

// Made when the library is loaded, by one thread: a fork cannot happen while another thread makes it.
const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);

// The number that a text of the form of JSON's numbers states, rounded correctly, whatever decimal point the process's
// locale has. (libc++ has no std::from_chars for double before version 20.)
double to_real(const std::string& text) {
  return strtod_l(text.c_str(), nullptr, c_locale);
}

// The bytes of the UTF-8 sequence at the beginning of a text; 0 if it is malformed (Unicode, table 3-7).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4 || !continues(1)) return 0;
  if (first < 0xE0) return 2;
  if (first < 0xF0) {
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) || !continues(2)) return 0;
    return 3;
  }
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) return 0;
  return continues(2) && continues(3) ? 4 : 0;
}

void append_utf8(std::string& text, std::uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
  } else if (code < 0x10000) {
    text += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
             static_cast<char>(0x80 | (code & 0x3F))};
  } else {
    text += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
             static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
  }
}

}  // namespace

// Fills a document. Open containers are on a stack of its own, so that depth costs no stack of the thread.
class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits, JsonDocument& document)
      : text_(text), limits_(limits), nodes_(document.nodes_), texts_(document.texts_) {}

  void parse() {
    value();
    while (!open_.empty()) {
      const std::size_t container = open_.back();
      const bool is_object = nodes_[container].kind == JsonKind::object;
      skip_space();
      if (next_is(is_object ? '}' : ']')) {
        close(container);
        continue;
      }
      if (nodes_[container].count != 0) {
        expect(',');
        skip_space();
      }
      if (nodes_[container].count == std::numeric_limits<std::uint32_t>::max()) refuse("a list is too long");
      ++nodes_[container].count;
      if (is_object) {
        if (position_ >= text_.size() || text_[position_] != '"') refuse("expected a key");
        string();
        skip_space();
        expect(':');
      }
      value();
    }
    skip_space();
    if (position_ != text_.size()) refuse("expected the end");
  }

 private:
  using Node = JsonDocument::Node;

  void value() {
    skip_space();
    if (position_ >= text_.size()) refuse("it ends early");
    switch (text_[position_]) {
      case '{':
      case '[':
        if (open_.size() == limits_.depth) refuse("nested deeper than " + std::to_string(limits_.depth) + " levels");
        open_.push_back(nodes_.size());
        add(text_[position_] == '{' ? JsonKind::object : JsonKind::list);
        ++position_;
        return;
      case '"':
        return string();
      case 't':
        word("true");
        add(JsonKind::boolean).integer = 1;
        return;
      case 'f':
        word("false");
        add(JsonKind::boolean).integer = 0;
        return;
      case 'n':
        word("null");
        add(JsonKind::null);
        return;
      default:
        return number();
    }
  }

  void close(std::size_t container) {
    ++position_;
    nodes_[container].size_or_end = nodes_.size();
    open_.pop_back();
    if (nodes_[container].kind == JsonKind::object) check_keys(container);
  }

  void check_keys(std::size_t object) {
    keys_.clear();
    for (std::size_t at = object + 1; at < nodes_.size();) {
      keys_.push_back(std::string_view(texts_).substr(nodes_[at].offset, nodes_[at].size_or_end));
      const Node& value = nodes_[++at];
      at = value.kind == JsonKind::list || value.kind == JsonKind::object ? value.size_or_end : at + 1;
    }
    std::sort(keys_.begin(), keys_.end());
    const auto twice = std::adjacent_find(keys_.begin(), keys_.end());
    if (twice != keys_.end()) refuse("key \"" + std::string(twice->substr(0, kMaxShown)) + "\" appears twice");
  }

  void string() {
    ++position_;
    const std::size_t begin = texts_.size();
    while (true) {
      if (position_ >= text_.size()) refuse("a text does not end");
      const char c = text_[position_];
      if (c == '"') break;
      if (c == '\\') {
        ++position_;
        escape();
        continue;
      }
      if (static_cast<unsigned char>(c) < 0x20) refuse("a text has a control character");
      const std::size_t length = utf8_length(text_.substr(position_, 4));
      if (length == 0) refuse("a text is not UTF-8");
      texts_.append(text_.substr(position_, length));
      position_ += length;
    }
    ++position_;
    Node& made = add(JsonKind::text);
    made.offset = begin;
    made.size_or_end = texts_.size() - begin;
  }

  void escape() {
    const char c = position_ < text_.size() ? text_[position_] : '\0';
    ++position_;
    constexpr std::string_view kNames = "\"\\/bfnrt", kValues = "\"\\/\b\f\n\r\t";
    if (const std::size_t at = kNames.find(c); c != '\0' && at != std::string_view::npos) {
      texts_ += kValues[at];
      return;
    }
    if (c != 'u') refuse("a text has an unknown escape");
    std::uint32_t code = hexadecimal();
    if (0xDC00 <= code && code < 0xE000) refuse("a text has half of a surrogate pair");
    if (0xD800 <= code && code < 0xDC00) {
      if (text_.substr(position_, 2) != "\\u") refuse("a text has half of a surrogate pair");
      position_ += 2;
      const std::uint32_t low = hexadecimal();
      if (low < 0xDC00 || low >= 0xE000) refuse("a text has half of a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(texts_, code);
  }

  std::uint32_t hexadecimal() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++position_) {
      const char c = position_ < text_.size() ? text_[position_] : '\0';
      const char lower = static_cast<char>(c | 0x20);
      if (!is_digit(c) && !('a' <= lower && lower <= 'f')) refuse("an escape is not four hexadecimal digits");
      code = code * 16 + static_cast<std::uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  void number() {
    const std::size_t begin = position_;
    if (limits_.has_nonfinite) {
      const std::string_view rest = text_.substr(position_, 9);
      const auto starts = [&](std::string_view name) { return rest.substr(0, name.size()) == name; };
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      if (starts("NaN")) return special("NaN", std::numeric_limits<double>::quiet_NaN());
      if (starts("Infinity")) return special("Infinity", kInfinity);
      if (starts("-Infinity")) return special("-Infinity", -kInfinity);
    }
    const auto at = [&] { return position_ < text_.size() ? text_[position_] : '\0'; };
    const auto digits = [&] {
      if (!is_digit(at())) refuse("expected a value");
      while (is_digit(at())) ++position_;
    };
    if (at() == '-') ++position_;
    if (at() == '0') {
      ++position_;
    } else {
      digits();
    }
    bool is_integer = true;
    if (at() == '.') {
      is_integer = false;
      ++position_;
      digits();
    }
    if (at() == 'e' || at() == 'E') {
      is_integer = false;
      ++position_;
      if (at() == '+' || at() == '-') ++position_;
      digits();
    }
    if (position_ - begin > kMaxNumber) refuse("a number has more than " + std::to_string(kMaxNumber) + " characters");
    const std::string written(text_.substr(begin, position_ - begin));
    if (is_integer) return integer(written);
    const double real = to_real(written);
    if (!std::isfinite(real)) refuse("a number is larger than any of 64 bits");
    add(JsonKind::real).real = real;
  }

  void integer(const std::string& written) {
    const bool is_negative = written[0] == '-';
    std::uint64_t magnitude = 0;
    const std::uint64_t limit = static_cast<std::uint64_t>(INT64_MAX) + (is_negative ? 1 : 0);
    for (const char c : std::string_view(written).substr(is_negative ? 1 : 0)) {
      const auto digit = static_cast<std::uint64_t>(c - '0');
      if (magnitude > (limit - digit) / 10) {
        add(JsonKind::large_integer);
        return;
      }
      magnitude = magnitude * 10 + digit;
    }
    add(JsonKind::integer).integer = static_cast<std::int64_t>(is_negative ? ~magnitude + 1 : magnitude);
  }

  void special(std::string_view name, double value) {
    position_ += name.size();
    add(JsonKind::real).real = value;
  }

  void word(std::string_view expected) {
    if (text_.substr(position_, expected.size()) != expected) refuse("expected a value");
    position_ += expected.size();
  }

  Node& add(JsonKind kind) {
    if (nodes_.size() >= limits_.values) refuse("more than " + std::to_string(limits_.values) + " values");
    Node& made = nodes_.emplace_back();
    made.kind = kind;
    made.offset = 0;
    return made;
  }

  void skip_space() {
    while (position_ < text_.size() && std::string_view(" \t\n\r").find(text_[position_]) != std::string_view::npos) {
      ++position_;
    }
  }

  bool next_is(char c) const { return position_ < text_.size() && text_[position_] == c; }

  void expect(char c) {
    if (!next_is(c)) refuse(std::string("expected '") + c + "'");
    ++position_;
  }

  [[noreturn]] void refuse(const std::string& why) const {
    throw JsonError("not valid JSON at byte " + std::to_string(position_) + ": " + why);
  }

  std::string_view text_;
  const JsonLimits& limits_;
  std::vector<Node>& nodes_;
  std::string& texts_;
  std::size_t position_ = 0;
  std::vector<std::size_t> open_;
  std::vector<std::string_view> keys_;
};

JsonDocument::JsonDocument(std::string_view text, const JsonLimits& limits) {
  texts_.reserve(std::min(text.size(), std::size_t{1} << 20));
  JsonParser(text, limits, *this).parse();
}

JsonValue JsonDocument::root() const {
  return {*this, 0};
}

bool JsonValue::boolean() const {
  if (!is(JsonKind::boolean)) refuse("true or false");
  return node().integer != 0;
}

std::int64_t JsonValue::integer() const {
  if (!is(JsonKind::integer)) refuse("an integer of 64 bits");
  return node().integer;
}

std::int64_t JsonValue::integer(std::int64_t minimum, std::int64_t maximum) const {
  const std::int64_t value = integer();
  if (value < minimum || value > maximum) {
    throw JsonError(shown() + " is not an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum));
  }
  return value;
}

double JsonValue::real() const {
  if (is(JsonKind::integer)) return static_cast<double>(node().integer);
  if (!is(JsonKind::real)) refuse("a number");
  return node().real;
}

std::string_view JsonValue::text() const {
  if (!is(JsonKind::text)) refuse("a text");
  return std::string_view(document_->texts_).substr(node().offset, node().size_or_end);
}

std::size_t JsonValue::size() const {
  if (!is(JsonKind::list) && !is(JsonKind::object)) refuse("a list or an object");
  return node().count;
}

std::vector<JsonValue> JsonValue::items() const {
  if (!is(JsonKind::list)) refuse("a list");
  std::vector<JsonValue> found;
  found.reserve(node().count);
  for (JsonValue next(*document_, index_ + 1); found.size() < node().count; next.index_ = next.behind()) {
    found.push_back(next);
  }
  return found;
}

std::vector<JsonValue> JsonValue::items(std::size_t count) const {
  std::vector<JsonValue> found = items();
  if (found.size() != count) {
    throw JsonError(shown() + " has " + std::to_string(found.size()) + " items; expected " + std::to_string(count));
  }
  return found;
}

std::vector<std::pair<std::string_view, JsonValue>> JsonValue::entries() const {
  if (!is(JsonKind::object)) refuse("an object");
  std::vector<std::pair<std::string_view, JsonValue>> found;
  found.reserve(node().count);
  for (std::size_t at = index_ + 1; found.size() < node().count;) {
    const JsonValue value(*document_, at + 1);
    found.emplace_back(JsonValue(*document_, at).text(), value);
    at = value.behind();
  }
  return found;
}

JsonValue JsonValue::at(std::string_view key) const {
  for (const auto& [name, value] : entries()) {
    if (name == key) return value;
  }
  throw JsonError("the key \"" + std::string(key) + "\" is missing");
}

bool JsonValue::has(std::string_view key) const {
  for (const auto& [name, value] : entries()) {
    if (name == key) return true;
  }
  return false;
}

std::size_t JsonValue::behind() const {
  const bool is_container = is(JsonKind::list) || is(JsonKind::object);
  return is_container ? node().size_or_end : index_ + 1;
}

std::string JsonValue::shown() const {
  switch (kind()) {
    case JsonKind::null:
      return "null";
    case JsonKind::boolean:
      return node().integer != 0 ? "true" : "false";
    case JsonKind::integer:
      return std::to_string(node().integer);
    case JsonKind::large_integer:
      return "an integer beyond 64 bits";
    case JsonKind::real:
      return std::to_string(node().real);
    case JsonKind::text: {
      // Cut between characters.
      std::string_view all = text();
      std::size_t length = std::min(all.size(), kMaxShown);
      while (length > 0 && length < all.size() && (static_cast<unsigned char>(all[length]) & 0xC0U) == 0x80U) --length;
      return "\"" + std::string(all.substr(0, length)) + (length < all.size() ? "...\"" : "\"");
    }
    case JsonKind::list:
      return "a list of " + std::to_string(size());
    case JsonKind::object:
      return "an object of " + std::to_string(size());
  }
  return "a value";
}

void JsonValue::refuse(const char* expected) const {
  throw JsonError("got " + shown() + ", expected " + expected);
}

}  // namespace engine
