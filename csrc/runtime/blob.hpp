// A blob: its manifest, and its sections, as engine/blob writes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "blob/json.hpp"
#include "blob/stored_program.hpp"
#include "runtime/failure.hpp"

namespace engine {

// Bytes at positions: a regular file, or memory.
class BlobSource {
 public:
  virtual ~BlobSource() = default;
  virtual std::uint64_t size() const = 0;
  // Throws Failure.
  virtual void read(std::uint64_t position, void* target, std::size_t size) const = 0;
  // The bytes in place; null for a file.
  virtual const std::byte* in_place(std::uint64_t position) const = 0;
};

// Throws Failure (IO), also for what is not a regular file.
std::unique_ptr<BlobSource> open_file(const std::string& path, const std::string& where);
std::unique_ptr<BlobSource> open_memory(const void* data, std::size_t size);

// Opened and checked: header, manifest, and where sections lie. The content of a section is verified when it is read.
// Used by one thread.
class Blob {
 public:
  // `where` names the blob in messages. Throws Failure, and std::bad_alloc.
  Blob(std::unique_ptr<BlobSource> source, std::string where);

  const std::string& where() const { return where_; }
  JsonValue manifest() const { return manifest_->root(); }
  bool has_section(std::string_view name) const;
  // The content of a section, which is verified at its first use, in memory of its own or in place. Throws Failure.
  StoredBytes section(std::string_view name);
  // Verifies the sections that were not used, without keeping them. Throws Failure.
  void verify();

  // Throws a Failure with `where` before the message.
  [[noreturn]] void refuse(engine_runtime_status status, const std::string& message) const;

 private:
  struct Section {
    std::string name;
    std::uint64_t position;
    std::size_t size;
    std::string sha256;
    StoredBytes content;
    bool is_verified = false;
  };

  void read_manifest();
  void read_sections(std::uint64_t begin, std::uint64_t end);
  void check_zero(std::uint64_t begin, std::uint64_t end) const;
  void verify(const Section& section, const std::string& digest) const;

  std::unique_ptr<BlobSource> source_;
  std::string where_;
  std::unique_ptr<JsonDocument> manifest_;
  std::vector<Section> sections_;
};

}  // namespace engine
