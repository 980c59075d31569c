#include "butterfly/model/format/gguf/gguf.h"

#include <algorithm>
#include <bit>

#include "butterfly/model/format/gguf/gguf_tensor_types.h"

namespace butterfly {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kMaxAlignment = 1 << 20;
constexpr std::uint64_t kMaxKeyBytes = 65535;
constexpr std::uint64_t kMaxTensorNameBytes = 255;
constexpr int kMaxArrayDepth = 4;

/// Bytes of a value of fixed size; 0 for strings, arrays and unknown types.
std::uint64_t scalar_bytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

const char* type_noun(GgufType type) {
  switch (type) {
    case GgufType::kFloat32:
    case GgufType::kFloat64:
      return "a number with a fraction";
    case GgufType::kBool:
      return "a truth value";
    case GgufType::kString:
      return "a string";
    case GgufType::kArray:
      return "an array";
    default:
      return "an integer";
  }
}

template <typename T>
T load(ByteSpan bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

/// An integer of any width; nothing for other types and for values beyond 63 bits.
std::optional<std::int64_t> load_integer(GgufType type, ByteSpan bytes) {
  switch (type) {
    case GgufType::kUint8:
      return load<std::uint8_t>(bytes);
    case GgufType::kInt8:
      return load<std::int8_t>(bytes);
    case GgufType::kUint16:
      return load<std::uint16_t>(bytes);
    case GgufType::kInt16:
      return load<std::int16_t>(bytes);
    case GgufType::kUint32:
      return load<std::uint32_t>(bytes);
    case GgufType::kInt32:
      return load<std::int32_t>(bytes);
    case GgufType::kInt64:
      return load<std::int64_t>(bytes);
    case GgufType::kUint64: {
      const auto value = load<std::uint64_t>(bytes);
      if (value > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

}  // namespace

class GgufFile::Parser {
 public:
  Parser(ByteSpan bytes, GgufFile& file) : bytes_(bytes), reader_(bytes), file_(file) {}

  Status parse() {
    BF_TRY(parse_header());
    for (std::uint64_t i = 0; i < metadata_count_; ++i) BF_TRY(parse_metadata());
    BF_TRY(read_alignment());
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < tensor_count_; ++i) {
      BF_ASSIGN_OR_RETURN(const std::uint64_t offset, parse_tensor_info());
      offsets.push_back(offset);
    }
    return place_tensors(offsets);
  }

 private:
  tl::unexpected<Error> ends_early(const char* inside) const {
    return make_error(ErrorCode::kBadData, "{}: ends inside {}, at byte {} of {}", file_.source_, inside,
                      reader_.position(), bytes_.size());
  }

  template <typename T>
  Result<T> read(const char* inside) {
    const std::optional<T> value = reader_.read<T>();
    if (!value) return ends_early(inside);
    return *value;
  }

  Result<std::string_view> read_string(const char* inside) {
    BF_ASSIGN_OR_RETURN(const auto length, read<std::uint64_t>(inside));
    const std::optional<ByteSpan> text = reader_.take(length);
    if (!text) {
      return make_error(ErrorCode::kBadData, "{}: {} is {} bytes long, but {} bytes are left in the file",
                        file_.source_, inside, length, reader_.remaining());
    }
    return as_text(*text);
  }

  Status parse_header() {
    BF_ASSIGN_OR_RETURN(const auto magic, read<std::uint32_t>("the header"));
    if (magic != kMagic) {
      return make_error(ErrorCode::kBadData,
                        "{}: is no GGUF file, it begins with {:#010x} instead of {:#010x} (\"GGUF\")", file_.source_,
                        magic, kMagic);
    }
    BF_ASSIGN_OR_RETURN(file_.version_, read<std::uint32_t>("the header"));
    if (file_.version_ != 2 && file_.version_ != 3) {
      const bool swapped = file_.version_ == 0x02000000 || file_.version_ == 0x03000000;
      return make_error(ErrorCode::kUnsupported,
                        "{}: is {} GGUF of version {}, supported are little-endian versions 2 and 3", file_.source_,
                        swapped ? "big-endian" : "a", swapped ? file_.version_ >> 24 : file_.version_);
    }
    BF_ASSIGN_OR_RETURN(tensor_count_, read<std::uint64_t>("the header"));
    BF_ASSIGN_OR_RETURN(metadata_count_, read<std::uint64_t>("the header"));
    BF_TRY(check_count("tensors", tensor_count_, 8 + 4 + 8 + 4 + 8));
    return check_count("metadata entries", metadata_count_, 8 + 4 + 1);
  }

  /// `bytes_min`: what one entry takes at least.
  Status check_count(const char* what, std::uint64_t count, std::uint64_t bytes_min) const {
    if (count > reader_.remaining() / bytes_min) {
      return make_error(ErrorCode::kBadData, "{}: claims {} {}, but the {} bytes that follow hold at most {}",
                        file_.source_, count, what, reader_.remaining(), reader_.remaining() / bytes_min);
    }
    return {};
  }

  Result<GgufType> read_type(std::string_view key) {
    BF_ASSIGN_OR_RETURN(const auto number, read<std::uint32_t>("the metadata"));
    if (number > static_cast<std::uint32_t>(GgufType::kFloat64)) {
      return make_error(ErrorCode::kBadData, "{}: {} has a value of type {}, types end at {}", file_.source_,
                        printable(key), number, static_cast<std::uint32_t>(GgufType::kFloat64));
    }
    return static_cast<GgufType>(number);
  }

  Status parse_metadata() {
    BF_ASSIGN_OR_RETURN(const std::string_view key, read_string("a metadata key"));
    if (key.empty() || key.size() > kMaxKeyBytes) {
      return make_error(ErrorCode::kBadData, "{}: a metadata key is {} bytes long, expected 1 to {}", file_.source_,
                        key.size(), kMaxKeyBytes);
    }
    Value value;
    BF_ASSIGN_OR_RETURN(value.type, read_type(key));
    if (value.type == GgufType::kArray) {
      BF_ASSIGN_OR_RETURN(value.element, read_type(key));
      BF_ASSIGN_OR_RETURN(value.count, read<std::uint64_t>("the metadata"));
      const std::size_t begin = reader_.position();
      BF_TRY(skip_elements(key, value.element, value.count, 1));
      value.bytes = bytes_.subspan(begin, reader_.position() - begin);
    } else if (value.type == GgufType::kString) {
      BF_ASSIGN_OR_RETURN(const std::string_view text, read_string("a metadata string"));
      value.bytes = as_bytes(text);
    } else {
      const std::optional<ByteSpan> bytes = reader_.take(scalar_bytes(value.type));
      if (!bytes) return ends_early("the metadata");
      value.bytes = *bytes;
    }
    if (!file_.values_.emplace(key, value).second) {
      return make_error(ErrorCode::kBadData, "{}: has the metadata key {} twice", file_.source_, printable(key));
    }
    return {};
  }

  Status skip_elements(std::string_view key, GgufType element, std::uint64_t count, int depth) {
    if (const std::uint64_t size = scalar_bytes(element); size != 0) {
      const auto bytes = checked_multiply(count, size);
      if (!bytes || !reader_.take(*bytes)) {
        return make_error(ErrorCode::kBadData,
                          "{}: {} claims {} elements of {} bytes, but {} bytes are left in the file", file_.source_,
                          printable(key), count, size, reader_.remaining());
      }
      return {};
    }
    if (depth >= kMaxArrayDepth && element == GgufType::kArray) {
      return make_error(ErrorCode::kBadData, "{}: {} nests arrays deeper than {}", file_.source_, printable(key),
                        kMaxArrayDepth);
    }
    BF_TRY(check_count("array elements", count, element == GgufType::kString ? 8 : 12));
    for (std::uint64_t i = 0; i < count; ++i) {
      if (element == GgufType::kString) {
        BF_TRY(read_string("a string of an array"));
      } else {
        BF_ASSIGN_OR_RETURN(const GgufType inner, read_type(key));
        BF_ASSIGN_OR_RETURN(const auto inner_count, read<std::uint64_t>("the metadata"));
        BF_TRY(skip_elements(key, inner, inner_count, depth + 1));
      }
    }
    return {};
  }

  Status read_alignment() {
    BF_ASSIGN_OR_RETURN(const auto alignment, file_.get_int("general.alignment"));
    if (!alignment) return {};
    const auto value = static_cast<std::uint64_t>(*alignment);
    // Eight keeps every element type aligned in memory.
    if (*alignment < 8 || value > kMaxAlignment || !std::has_single_bit(value)) {
      return make_error(ErrorCode::kBadData, "{}: general.alignment is {}, expected a power of two from 8 to {}",
                        file_.source_, *alignment, kMaxAlignment);
    }
    alignment_ = value;
    return {};
  }

  /// Returns the tensor's offset into the data section.
  Result<std::uint64_t> parse_tensor_info() {
    GgufTensor tensor;
    BF_ASSIGN_OR_RETURN(tensor.name, read_string("a tensor name"));
    if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
      return make_error(ErrorCode::kBadData, "{}: a tensor name is {} bytes long, expected 1 to {}", file_.source_,
                        tensor.name.size(), kMaxTensorNameBytes);
    }
    BF_ASSIGN_OR_RETURN(const auto dims, read<std::uint32_t>("the tensor list"));
    if (dims < 1 || dims > tensor.shape.size()) {
      return make_error(ErrorCode::kBadData, "{}: {} has {} dimensions, expected 1 to {}", file_.source_,
                        printable(tensor.name), dims, tensor.shape.size());
    }
    tensor.dims = static_cast<int>(dims);
    for (std::uint32_t i = 0; i < dims; ++i) {
      BF_ASSIGN_OR_RETURN(const auto extent, read<std::uint64_t>("the tensor list"));
      if (extent == 0 || extent > static_cast<std::uint64_t>(INT64_MAX)) {
        return make_error(ErrorCode::kBadData, "{}: dimension {} of {} is {}, expected 1 to {}", file_.source_, i,
                          printable(tensor.name), extent, INT64_MAX);
      }
      tensor.shape[i] = static_cast<std::int64_t>(extent);
    }
    BF_ASSIGN_OR_RETURN(tensor.file_type, read<std::uint32_t>("the tensor list"));
    BF_ASSIGN_OR_RETURN(const auto offset, read<std::uint64_t>("the tensor list"));
    const GgufTensorType* info = find_gguf_tensor_type(tensor.file_type);
    tensor.type_name = info ? info->name : fmt::format("number {}", tensor.file_type);
    if (info) tensor.type = info->type;
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      return make_error(ErrorCode::kBadData, "{}: has the tensor {} twice", file_.source_, printable(tensor.name));
    }
    file_.tensors_.push_back(std::move(tensor));
    return offset;
  }

  /// Bytes by type and shape; nothing where the size of the type is unknown.
  Result<std::optional<std::uint64_t>> tensor_bytes(const GgufTensor& tensor) const {
    const GgufTensorType* info = find_gguf_tensor_type(tensor.file_type);
    if (!info) return std::optional<std::uint64_t>();
    const auto cols = static_cast<std::uint64_t>(tensor.shape[0]);
    if (cols % info->block_elements != 0) {
      return make_error(ErrorCode::kBadData, "{}: rows of {} have {} elements, {} needs a multiple of {}",
                        file_.source_, printable(tensor.name), cols, info->name, info->block_elements);
    }
    std::optional<std::uint64_t> bytes = checked_multiply(cols / info->block_elements, info->block_bytes);
    for (std::size_t i = 1; i < tensor.shape.size() && bytes; ++i) {
      bytes = checked_multiply(*bytes, static_cast<std::uint64_t>(tensor.shape[i]));
    }
    if (!bytes) {
      return make_error(ErrorCode::kBadData, "{}: {} of {} x {} x {} x {} elements overflows a 64-bit size",
                        file_.source_, printable(tensor.name), tensor.shape[0], tensor.shape[1], tensor.shape[2],
                        tensor.shape[3]);
    }
    return bytes;
  }

  Status place_tensors(const std::vector<std::uint64_t>& offsets) {
    if (offsets.empty()) return {};
    const std::uint64_t data_begin = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    if (data_begin > bytes_.size()) {
      return make_error(ErrorCode::kBadData, "{}: ends at byte {}, before its tensor data at byte {}", file_.source_,
                        bytes_.size(), data_begin);
    }
    const ByteSpan data = bytes_.subspan(data_begin);
    std::vector<std::size_t> order(offsets.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return offsets[a] < offsets[b]; });
    // Where the next tensor must begin; not known after a tensor whose size is unknown.
    std::uint64_t expected = 0;
    bool expected_known = true;
    for (std::size_t index : order) {
      GgufTensor& tensor = file_.tensors_[index];
      const std::uint64_t offset = offsets[index];
      if (offset % alignment_ != 0 || (expected_known && offset != expected)) {
        return make_error(
            ErrorCode::kBadData,
            "{}: the data of {} begin at {}, expected {} by the types and shapes before it, aligned to {}",
            file_.source_, printable(tensor.name), offset, expected, alignment_);
      }
      BF_ASSIGN_OR_RETURN(const std::optional<std::uint64_t> size, tensor_bytes(tensor));
      if (offset > data.size() || size.value_or(0) > data.size() - offset) {
        return make_error(ErrorCode::kBadData, "{}: {} needs {} bytes at {} of the data section, which has {} bytes",
                          file_.source_, printable(tensor.name), size.value_or(0), offset, data.size());
      }
      expected_known = size.has_value();
      if (!size) continue;
      tensor.bytes = data.subspan(offset, *size);
      expected = (offset + *size + alignment_ - 1) / alignment_ * alignment_;
    }
    if (expected_known && expected < data.size()) {
      return make_error(ErrorCode::kBadData, "{}: has {} bytes of tensor data, its types and shapes say {}",
                        file_.source_, data.size(), expected);
    }
    return {};
  }

  ByteSpan bytes_;
  ByteReader reader_;
  GgufFile& file_;
  std::uint64_t tensor_count_ = 0;
  std::uint64_t metadata_count_ = 0;
  std::uint64_t alignment_ = kDefaultAlignment;
};

Result<GgufFile> GgufFile::parse(ByteSpan bytes, std::string source) {
  GgufFile file;
  file.source_ = std::move(source);
  BF_TRY(Parser(bytes, file).parse());
  return file;
}

Status GgufFile::take_q8_0_as_int8() {
  for (GgufTensor& tensor : tensors_) {
    if (tensor.type == DType::kQ8_0) tensor.type = DType::kInt8;
    if (tensor.type && (block_elements(*tensor.type) == 1 || tensor.type == DType::kInt8)) continue;
    return make_error(ErrorCode::kBadData, "{}: is said to be of int8, but {} is stored as {}", source_,
                      printable(tensor.name), tensor.type_name);
  }
  return {};
}

Status GgufFile::add_tensors(const GgufFile& other) {
  for (const GgufTensor& tensor : other.tensors_) {
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return make_error(ErrorCode::kBadData, "{}: has the tensor {}, as {} has", other.source_, printable(tensor.name),
                        source_);
    }
    tensors_.push_back(tensor);
  }
  return {};
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> result;
  for (const auto& [key, value] : values_) result.push_back(key);
  return result;
}

const GgufFile::Value* GgufFile::find_value(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::string GgufFile::describe(std::string_view key) const {
  const Value* value = find_value(key);
  if (!value) return "missing";
  if (value->type != GgufType::kArray) return type_noun(value->type);
  return fmt::format("an array of {} elements, each {}", value->count, type_noun(value->element));
}

tl::unexpected<Error> GgufFile::mismatch(std::string_view key, const char* expected) const {
  return make_error(ErrorCode::kBadData, "{}: {} is {}, expected {}", source_, printable(key), describe(key), expected);
}

Result<std::optional<std::int64_t>> GgufFile::get_int(std::string_view key) const {
  const Value* value = find_value(key);
  if (!value) return std::optional<std::int64_t>();
  const std::optional<std::int64_t> integer = load_integer(value->type, value->bytes);
  if (!integer) return mismatch(key, "an integer below 2^63");
  return integer;
}

Result<std::optional<double>> GgufFile::get_float(std::string_view key) const {
  const Value* value = find_value(key);
  if (!value) return std::optional<double>();
  if (value->type == GgufType::kFloat32) return std::optional<double>(load<float>(value->bytes));
  if (value->type == GgufType::kFloat64) return std::optional<double>(load<double>(value->bytes));
  return mismatch(key, "a number with a fraction");
}

Result<std::optional<bool>> GgufFile::get_bool(std::string_view key) const {
  const Value* value = find_value(key);
  if (!value) return std::optional<bool>();
  if (value->type != GgufType::kBool) return mismatch(key, "a truth value");
  return std::optional<bool>(load<std::uint8_t>(value->bytes) != 0);
}

Result<std::optional<std::string_view>> GgufFile::get_string(std::string_view key) const {
  const Value* value = find_value(key);
  if (!value) return std::optional<std::string_view>();
  if (value->type != GgufType::kString) return mismatch(key, "a string");
  return std::optional<std::string_view>(as_text(value->bytes));
}

Result<std::vector<std::string_view>> GgufFile::get_strings(std::string_view key) const {
  std::vector<std::string_view> result;
  const Value* value = find_value(key);
  if (!value) return result;
  if (value->type != GgufType::kArray || value->element != GgufType::kString)
    return mismatch(key, "an array of strings");
  result.reserve(value->count);
  ByteReader reader(value->bytes);
  for (std::uint64_t i = 0; i < value->count; ++i)
    result.push_back(as_text(*reader.take(*reader.read<std::uint64_t>())));
  return result;
}

Result<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
  std::vector<float> result;
  const Value* value = find_value(key);
  if (!value) return result;
  if (value->type != GgufType::kArray || value->element != GgufType::kFloat32) {
    return mismatch(key, "an array of 32-bit numbers with a fraction");
  }
  result.resize(value->count);
  if (!result.empty()) std::memcpy(result.data(), value->bytes.data(), value->bytes.size());
  return result;
}

Result<std::vector<std::int64_t>> GgufFile::get_ints(std::string_view key) const {
  std::vector<std::int64_t> result;
  const Value* value = find_value(key);
  if (!value) return result;
  if (value->type != GgufType::kArray) return mismatch(key, "an array of integers");
  result.reserve(value->count);
  const std::uint64_t size = scalar_bytes(value->element);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto integer = size == 0 ? std::nullopt : load_integer(value->element, value->bytes.subspan(i * size, size));
    if (!integer) return mismatch(key, "an array of integers");
    result.push_back(*integer);
  }
  return result;
}

}  // namespace butterfly
