#include "runtime/blob.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "executor/available_memory.hpp"
#include "executor/memory.hpp"
#include "runtime/sha256.hpp"

namespace engine {
namespace {

constexpr std::string_view kMagic =
    "\x93"
    "EBLOB\r\n";
constexpr std::size_t kFields = 64, kHeader = kFields + 32;  // the fields, and their SHA-256
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kMaxManifest = std::uint64_t{16} << 20;
constexpr std::size_t kChunk = std::size_t{1} << 16;
constexpr const char* kAgain = "; the blob was damaged after it was written: export it again";
// The kinds of blobs. The format version is 4 (generation - 1) + kind.
constexpr std::uint64_t kPlain = 1, kSigned = 2, kSealed = 3, kSealedSigned = 4, kKinds = 4, kGeneration = 2;

std::uint64_t aligned(std::uint64_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t little_endian(const unsigned char* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

class File final : public BlobSource {
 public:
  File(const std::string& path, std::string where) : where_(std::move(where)) {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) throw Failure(ENGINE_RUNTIME_IO, where_ + ": cannot be opened: " + std::strerror(errno));
    struct stat found;
    if (fstat(descriptor_, &found) != 0 || !S_ISREG(found.st_mode)) {
      close(descriptor_);
      throw Failure(ENGINE_RUNTIME_IO, where_ + ": not a regular file; read it into memory, and open that");
    }
    size_ = static_cast<std::uint64_t>(found.st_size);
  }
  ~File() override { close(descriptor_); }

  std::uint64_t size() const override { return size_; }

  void read(std::uint64_t position, void* target, std::size_t size) const override {
    auto* bytes = static_cast<char*>(target);
    while (size != 0) {
      const ssize_t count =
          pread(descriptor_, bytes, std::min(size, std::size_t{1} << 30), static_cast<off_t>(position));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        const std::string why = count == 0 ? "the file was cut meanwhile" : std::strerror(errno);
        throw Failure(ENGINE_RUNTIME_IO, where_ + ": reading failed at byte " + std::to_string(position) + ": " + why);
      }
      bytes += count, position += static_cast<std::uint64_t>(count), size -= static_cast<std::size_t>(count);
    }
  }

  const std::byte* in_place(std::uint64_t) const override { return nullptr; }

 private:
  std::string where_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

class Memory final : public BlobSource {
 public:
  Memory(const void* data, std::size_t size) : data_(static_cast<const std::byte*>(data)), size_(size) {}

  std::uint64_t size() const override { return size_; }
  void read(std::uint64_t position, void* target, std::size_t size) const override {
    if (size != 0) std::memcpy(target, data_ + position, size);
  }
  const std::byte* in_place(std::uint64_t position) const override { return data_ + position; }

 private:
  const std::byte* data_;
  std::size_t size_;
};

void check_keys(const JsonValue& object, std::vector<std::string_view> expected, const std::string& what) {
  for (const auto& [key, value] : object.entries()) {
    const auto at = std::find(expected.begin(), expected.end(), key);
    if (at == expected.end()) throw JsonError(what + " has the unknown key \"" + std::string(key.substr(0, 80)) + "\"");
    expected.erase(at);
  }
  if (!expected.empty()) throw JsonError(what + " has no key \"" + std::string(expected.front()) + "\"");
}

}  // namespace

std::unique_ptr<BlobSource> open_file(const std::string& path, const std::string& where) {
  return std::make_unique<File>(path, where);
}

std::unique_ptr<BlobSource> open_memory(const void* data, std::size_t size) {
  return std::make_unique<Memory>(data, size);
}

Blob::Blob(std::unique_ptr<BlobSource> source, std::string where)
    : source_(std::move(source)), where_(std::move(where)) {
  try {
    read_manifest();
  } catch (const JsonError& error) {
    refuse(ENGINE_RUNTIME_FORMAT, std::string("the manifest: ") + error.what());
  }
}

void Blob::refuse(engine_runtime_status status, const std::string& message) const {
  throw Failure(status, where_ + ": " + message);
}

void Blob::read_manifest() {
  const std::uint64_t size = source_->size();
  std::array<unsigned char, kHeader> header{};
  const std::size_t begin = static_cast<std::size_t>(std::min<std::uint64_t>(size, kMagic.size()));
  source_->read(0, header.data(), begin);
  // The magic first: a short file of another format should not be reported as a truncated blob.
  if (begin == 0 || kMagic.compare(0, begin, reinterpret_cast<const char*>(header.data()), begin) != 0) {
    refuse(ENGINE_RUNTIME_FORMAT, size == 0 ? "empty; expected a blob" : "not a blob; compile a model with engine-sdk");
  }
  if (size < kHeader) {
    refuse(ENGINE_RUNTIME_FORMAT,
           "truncated; it has " + std::to_string(size) + " bytes, the header alone takes " + std::to_string(kHeader));
  }
  source_->read(0, header.data(), kHeader);
  const std::array<unsigned char, 32> digest = Sha256::of(header.data(), kFields);
  if (!std::equal(digest.begin(), digest.end(), header.begin() + kFields)) {
    refuse(ENGINE_RUNTIME_FORMAT, std::string("the header does not match its own hash") + kAgain);
  }
  const std::uint64_t version = little_endian(header.data() + 8), manifest_size = little_endian(header.data() + 16);
  const std::uint64_t declared = little_endian(header.data() + 24);
  const std::uint64_t generation = version == 0 ? 0 : (version - 1) / kKinds + 1;
  if (generation != kGeneration) {
    refuse(ENGINE_RUNTIME_INCOMPATIBLE, "format version " + std::to_string(version) + "; this runtime reads " +
                                            std::to_string(kKinds * (kGeneration - 1) + kPlain) +
                                            ": export the network again with engine " + engine_runtime_version());
  }
  const std::uint64_t kind = version - kKinds * (generation - 1);
  if (kind == kSealed || kind == kSealedSigned) {
    refuse(ENGINE_RUNTIME_UNSUPPORTED, "it is encrypted, which this runtime does not read: export it without a key");
  }
  if (kind == kSigned) {
    refuse(ENGINE_RUNTIME_UNSUPPORTED,
           "it is signed, and this runtime cannot verify signatures: verify it with engine-sdk, and export it again "
           "without a signature");
  }
  if (declared != size) {
    refuse(ENGINE_RUNTIME_FORMAT, std::string(declared > size ? "truncated; " : "data follows the blob; ") + "it has " +
                                      std::to_string(size) + " bytes, the header declares " + std::to_string(declared));
  }
  if (manifest_size > kMaxManifest || manifest_size > size - kHeader) {
    refuse(ENGINE_RUNTIME_FORMAT, "the header declares a manifest of " + std::to_string(manifest_size) +
                                      " bytes; expected at most " + std::to_string(kMaxManifest) +
                                      ", and inside the blob");
  }
  std::string text(static_cast<std::size_t>(manifest_size), '\0');
  source_->read(kHeader, text.data(), text.size());
  const std::array<unsigned char, 32> hash = Sha256::of(text.data(), text.size());
  if (!std::equal(hash.begin(), hash.end(), header.begin() + 32)) {
    refuse(ENGINE_RUNTIME_FORMAT, std::string("the manifest does not match its hash in the header") + kAgain);
  }
  manifest_ = std::make_unique<JsonDocument>(text);
  check_keys(manifest(),
             {"device", "plugin_name", "plugin_version", "engine_version", "api_version", "requirements", "preferences",
              "config", "inputs", "outputs", "metadata", "sections"},
             "the manifest");
  const std::uint64_t end = kHeader + manifest_size;
  read_sections(aligned(end), size);
  check_zero(end, aligned(end));
}

void Blob::read_sections(std::uint64_t begin, std::uint64_t size) {
  std::uint64_t end = begin;
  if (begin > size) refuse(ENGINE_RUNTIME_FORMAT, "the manifest ends behind the blob");
  for (const JsonValue& item : manifest().at("sections").items()) {
    check_keys(item, {"name", "offset", "size", "sha256"}, "a section");
    Section section{std::string(item.at("name").text()), 0, 0, std::string(item.at("sha256").text()), {}};
    const std::string named = "section \"" + section.name.substr(0, 80) + "\"";
    const auto offset = static_cast<std::uint64_t>(item.at("offset").integer(0));
    const auto bytes = static_cast<std::uint64_t>(item.at("size").integer(0));
    if (has_section(section.name)) refuse(ENGINE_RUNTIME_FORMAT, "two sections are named \"" + section.name + "\"");
    if (offset != aligned(end) - begin) {
      refuse(ENGINE_RUNTIME_FORMAT,
             named + " is at " + std::to_string(offset) + "; expected " + std::to_string(aligned(end) - begin));
    }
    if (aligned(end) > size || bytes > size - aligned(end)) {
      refuse(ENGINE_RUNTIME_FORMAT, named + " of " + std::to_string(bytes) + " bytes extends beyond the blob");
    }
    check_zero(end, aligned(end));
    section.position = aligned(end);
    section.size = static_cast<std::size_t>(bytes);
    end = section.position + bytes;
    sections_.push_back(std::move(section));
  }
  if (end != size) {
    refuse(ENGINE_RUNTIME_FORMAT, "the header declares " + std::to_string(size) + " bytes, but header, manifest and " +
                                      "sections take " + std::to_string(end));
  }
}

void Blob::check_zero(std::uint64_t begin, std::uint64_t end) const {
  std::array<unsigned char, kAlignment> padding;
  source_->read(begin, padding.data(), static_cast<std::size_t>(end - begin));
  if (std::any_of(padding.data(), padding.data() + (end - begin), [](unsigned char byte) { return byte != 0; })) {
    refuse(ENGINE_RUNTIME_FORMAT, "the padding at byte " + std::to_string(begin) + " is not zero" + kAgain);
  }
}

bool Blob::has_section(std::string_view name) const {
  return std::any_of(sections_.begin(), sections_.end(), [&](const Section& each) { return each.name == name; });
}

StoredBytes Blob::section(std::string_view name) {
  const auto at =
      std::find_if(sections_.begin(), sections_.end(), [&](const Section& each) { return each.name == name; });
  if (at == sections_.end()) refuse(ENGINE_RUNTIME_FORMAT, "no section \"" + std::string(name.substr(0, 80)) + "\"");
  Section& found = *at;
  if (found.is_verified) return found.content;
  StoredBytes content{source_->in_place(found.position), found.size, nullptr};
  if (content.data == nullptr) {
    check_available(found.size);
    const auto memory = std::make_shared<AlignedMemory>(found.size, kAlignment);
    source_->read(found.position, memory->data(), found.size);
    content = {memory->data(), found.size, memory};
  }
  verify(found, hex(Sha256::of(content.data, content.size)));
  found.content = std::move(content);
  found.is_verified = true;
  return found.content;
}

void Blob::verify() {
  std::vector<char> chunk(kChunk);
  for (const Section& section : sections_) {
    if (section.is_verified) continue;
    Sha256 hash;
    for (std::size_t done = 0; done < section.size;) {
      const std::size_t count = std::min(kChunk, section.size - done);
      source_->read(section.position + done, chunk.data(), count);
      hash.update(chunk.data(), count);
      done += count;
    }
    verify(section, hex(hash.digest()));
  }
}

void Blob::verify(const Section& section, const std::string& digest) const {
  if (digest == section.sha256) return;
  refuse(ENGINE_RUNTIME_CORRUPT, "section \"" + section.name.substr(0, 80) + "\" (" + std::to_string(section.size) +
                                     " bytes) has SHA-256 " + digest + ", the manifest says " +
                                     section.sha256.substr(0, 64) + kAgain);
}

}  // namespace engine
