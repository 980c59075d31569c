// What a model is, without its weights: enough to plan, cheap to copy. Immutable, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"

namespace butterfly {

struct ModelConfig;

class ModelInfo {
 public:
  /// A GGUF file or a Hugging Face directory. Errors: kNotFound, kIo, kBadData, kUnsupported.
  static Result<ModelInfo> open(const std::string& path);

  /// A shape known by name, with matrices of `weight_type` ("f32", "f16", "q8_0", "q4_k" and so on).
  /// Errors: kNotFound listing the names; kInvalidArgument for the type.
  static Result<ModelInfo> known(const std::string& name, const std::string& weight_type = "f16");
  static std::vector<std::string> known_names();

  std::string name() const;
  std::string architecture() const;
  std::string weight_type() const;
  int layers() const;
  int context() const;  // tokens
  int vocab() const;
  std::uint64_t parameters() const;

  /// For the library's own use.
  const ModelConfig& config() const { return *config_; }

 private:
  explicit ModelInfo(std::shared_ptr<const ModelConfig> config) : config_(std::move(config)) {}
  std::shared_ptr<const ModelConfig> config_;  // shared by copies, never changed
};

}  // namespace butterfly
