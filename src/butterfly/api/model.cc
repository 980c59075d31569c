#include "butterfly/model.h"

#include "butterfly/model/core/config.h"
#include "butterfly/model/format/open_checkpoint.h"

namespace butterfly {

Result<ModelInfo> ModelInfo::open(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_checkpoint(path));
  return ModelInfo(std::make_shared<const ModelConfig>(checkpoint.config));
}

Result<ModelInfo> ModelInfo::known(const std::string& name, const std::string& weight_type) {
  BF_ASSIGN_OR_RETURN(ModelConfig config, named_config(name));
  const auto type = parse_dtype(weight_type);
  if (!type || *type == DType::kI32) {
    return make_error(ErrorCode::kInvalidArgument, "no weights can have the type '{}'", weight_type);
  }
  config.weight_type = *type;
  return ModelInfo(std::make_shared<const ModelConfig>(std::move(config)));
}

std::vector<std::string> ModelInfo::known_names() {
  return named_configs();
}
std::string ModelInfo::name() const {
  return config_->name;
}
std::string ModelInfo::architecture() const {
  return config_->architecture;
}
std::string ModelInfo::weight_type() const {
  return std::string(to_string(config_->weight_type));
}
int ModelInfo::layers() const {
  return config_->layers;
}
int ModelInfo::context() const {
  return config_->context;
}
int ModelInfo::vocab() const {
  return config_->vocab;
}
std::uint64_t ModelInfo::parameters() const {
  return parameter_count(*config_);
}

}  // namespace butterfly
