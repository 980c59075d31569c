// Writes a GGUF v3 file (alignment 32) as a stream: metadata, then the list of tensors, then their data in list order.
// The bytes go to a temporary beside the target, which takes its name only when everything is on disk; on any error
// and when the writer is destroyed unfinished the temporary is removed. One file per writer; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/tensor/dtype.h"

namespace butterfly {

class GgufWriter {
 public:
  /// Errors: kIo naming the path and the system's reason; kInvalidArgument where `path` is something else than a file.
  static Result<GgufWriter> create(const std::string& path);

  GgufWriter(GgufWriter&&) noexcept;
  GgufWriter& operator=(GgufWriter&&) noexcept;
  ~GgufWriter();

  /// Metadata, before write_header. Keys must differ.
  void add_integer(std::string_view key, std::uint32_t value);
  void add_float(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_string(std::string_view key, std::string_view value);
  void add_strings(std::string_view key, const std::vector<std::string>& values);
  void add_floats(std::string_view key, const std::vector<float>& values);
  void add_integers(std::string_view key, const std::vector<std::int32_t>& values);

  /// Declares the next tensor; rows == 1 makes a vector, experts > 0 one more dimension. Errors: kInvalidArgument for
  /// rows that `type` cannot hold.
  struct Tensor {
    std::string name;
    DType type = DType::kF32;
    std::int64_t rows = 1;
    std::int64_t cols = 0;
    std::int64_t planes = 0;  // matrices (or biases) of that size behind each other, as of experts; 0: not divided so
  };
  Status declare(const Tensor& tensor);

  /// After the last declaration. Errors: kIo, as for write and finish.
  Status write_header();

  /// The next bytes of the tensors' data, in the order of declaration; may stop and go on anywhere.
  Status write(ByteSpan bytes);

  /// Every declared byte was written: syncs and gives the file its name.
  Status finish();

  /// Bytes of the whole file, known after the last declaration.
  std::uint64_t file_bytes() const;

 private:
  struct Impl;
  explicit GgufWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace butterfly
