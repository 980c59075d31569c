#include "butterfly/model/format/gguf/gguf_writer.h"

#include <algorithm>

#include "butterfly/base/check.h"
#include "butterfly/model/files/pending_file.h"
#include "butterfly/model/format/gguf/gguf.h"
#include "butterfly/model/format/gguf/gguf_tensor_types.h"

namespace butterfly {
namespace {

constexpr std::uint64_t kAlignment = 32;
constexpr std::size_t kBufferBytes = 1 << 20;

constexpr std::uint64_t aligned(std::uint64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

template <typename T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}
void append_string(std::string& out, std::string_view text) {
  append(out, static_cast<std::uint64_t>(text.size()));
  out += text;
}

}  // namespace

struct GgufWriter::Impl {
  explicit Impl(const std::string& path) : file(path) {}

  void key(std::string_view name, GgufType type) {
    append_string(metadata, name);
    append(metadata, static_cast<std::uint32_t>(type));
    ++metadata_count;
  }
  void array(std::string_view name, GgufType element, std::size_t count) {
    key(name, GgufType::kArray);
    append(metadata, static_cast<std::uint32_t>(element));
    append(metadata, static_cast<std::uint64_t>(count));
  }
  std::uint64_t header_bytes() const { return aligned(4 + 4 + 8 + 8 + metadata.size() + tensor_list.size()); }

  Status put(const char* data, std::size_t size) {
    if (buffer.size() + size > kBufferBytes) BF_TRY(flush());
    if (size > kBufferBytes) return file.write(data, size);
    buffer.append(data, size);
    return {};
  }
  Status flush() {
    BF_TRY(file.write(buffer.data(), buffer.size()));
    buffer.clear();
    return {};
  }

  PendingFile file;
  std::string metadata;
  std::uint64_t metadata_count = 0;
  std::string tensor_list;
  std::vector<std::uint64_t> sizes;  // of the declared tensors, without padding
  std::uint64_t data_bytes = 0;      // with padding
  std::size_t current = 0;           // the tensor being written
  std::uint64_t written = 0;         // of it
  bool header_written = false;
  std::string buffer;
};

GgufWriter::GgufWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufWriter::GgufWriter(GgufWriter&&) noexcept = default;
GgufWriter& GgufWriter::operator=(GgufWriter&&) noexcept = default;
GgufWriter::~GgufWriter() = default;

Result<GgufWriter> GgufWriter::create(const std::string& path) {
  auto impl = std::make_unique<Impl>(path);
  BF_TRY(impl->file.open());
  return GgufWriter(std::move(impl));
}

void GgufWriter::add_integer(std::string_view key, std::uint32_t value) {
  impl_->key(key, GgufType::kUint32);
  append(impl_->metadata, value);
}

void GgufWriter::add_float(std::string_view key, float value) {
  impl_->key(key, GgufType::kFloat32);
  append(impl_->metadata, value);
}

void GgufWriter::add_bool(std::string_view key, bool value) {
  impl_->key(key, GgufType::kBool);
  append(impl_->metadata, static_cast<std::uint8_t>(value));
}

void GgufWriter::add_string(std::string_view key, std::string_view value) {
  impl_->key(key, GgufType::kString);
  append_string(impl_->metadata, value);
}

void GgufWriter::add_strings(std::string_view key, const std::vector<std::string>& values) {
  impl_->array(key, GgufType::kString, values.size());
  for (const std::string& value : values) append_string(impl_->metadata, value);
}

void GgufWriter::add_floats(std::string_view key, const std::vector<float>& values) {
  impl_->array(key, GgufType::kFloat32, values.size());
  for (float value : values) append(impl_->metadata, value);
}

void GgufWriter::add_integers(std::string_view key, const std::vector<std::int32_t>& values) {
  impl_->array(key, GgufType::kInt32, values.size());
  for (std::int32_t value : values) append(impl_->metadata, value);
}

Status GgufWriter::declare(const Tensor& tensor) {
  BF_CHECK(!impl_->header_written);
  const auto row = tensor.cols > 0 && tensor.rows > 0 ? row_bytes(tensor.type, static_cast<std::uint64_t>(tensor.cols))
                                                      : std::nullopt;
  const auto planes = static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.planes, 1));
  const auto plane = row ? checked_multiply(*row, static_cast<std::uint64_t>(tensor.rows)) : std::nullopt;
  const auto bytes = plane ? checked_multiply(*plane, planes) : std::nullopt;
  if (!bytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {} x {} cannot be stored as {}", tensor.name, tensor.rows,
                      tensor.cols, to_string(tensor.type));
  }
  std::string& list = impl_->tensor_list;
  append_string(list, tensor.name);
  const bool vector = tensor.rows == 1;
  append(list, std::uint32_t{(vector ? 1u : 2u) + (tensor.planes > 0 ? 1u : 0u)});
  append(list, static_cast<std::uint64_t>(tensor.cols));
  if (!vector) append(list, static_cast<std::uint64_t>(tensor.rows));
  if (tensor.planes > 0) append(list, planes);
  append(list, gguf_tensor_type(tensor.type));
  append(list, impl_->data_bytes);
  impl_->sizes.push_back(*bytes);
  impl_->data_bytes += aligned(*bytes);
  return {};
}

Status GgufWriter::write_header() {
  BF_CHECK(!impl_->header_written);
  impl_->header_written = true;
  std::string header = "GGUF";
  append(header, std::uint32_t{3});
  append(header, static_cast<std::uint64_t>(impl_->sizes.size()));
  append(header, impl_->metadata_count);
  header += impl_->metadata;
  header += impl_->tensor_list;
  header.resize(impl_->header_bytes(), '\0');
  return impl_->put(header.data(), header.size());
}

Status GgufWriter::write(ByteSpan bytes) {
  Impl& impl = *impl_;
  BF_CHECK(impl.header_written);
  while (!bytes.empty()) {
    BF_CHECK(impl.current < impl.sizes.size());
    const std::uint64_t left = impl.sizes[impl.current] - impl.written;
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(left, bytes.size()));
    BF_TRY(impl.put(reinterpret_cast<const char*>(bytes.data()), count));
    bytes = bytes.subspan(count);
    impl.written += count;
    if (count != left) continue;
    const std::uint64_t size = impl.sizes[impl.current++];
    impl.written = 0;
    const char padding[kAlignment] = {};
    BF_TRY(impl.put(padding, aligned(size) - size));
  }
  return {};
}

Status GgufWriter::finish() {
  BF_CHECK(impl_->header_written && impl_->current == impl_->sizes.size());
  BF_TRY(impl_->flush());
  return impl_->file.commit();
}

std::uint64_t GgufWriter::file_bytes() const {
  return impl_->header_bytes() + impl_->data_bytes;
}

}  // namespace butterfly
