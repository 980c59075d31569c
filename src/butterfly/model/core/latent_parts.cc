#include "butterfly/model/core/latent_parts.h"

#include <cstring>
#include <memory>
#include <vector>

#include "butterfly/tensor/quantize.h"

namespace butterfly {
namespace {

std::int64_t plain_dim(const ModelConfig& config) {
  return config.head_dim - config.rope.dim;
}

struct NewView {
  WeightView view{};
  std::byte* data = nullptr;
};

NewView allocate(DType type, std::int64_t rows, std::int64_t cols) {
  const std::uint64_t row = *row_bytes(type, static_cast<std::uint64_t>(cols));
  const auto memory = std::make_shared<std::vector<std::byte>>(row * static_cast<std::uint64_t>(rows));
  return {{.type = type, .rows = rows, .cols = cols, .bytes = *memory, .owner = memory}, memory->data()};
}

}  // namespace

std::int64_t latent_rows(const ModelConfig& config) {
  return std::int64_t{config.heads} * (plain_dim(config) + config.latent.value_dim);
}

DType latent_key_type(DType stored) {
  return block_elements(stored) > 1 ? DType::kF32 : stored;
}

WeightView latent_keys(const ModelConfig& config, const WeightView& both) {
  const std::int64_t plain = plain_dim(config);
  const std::int64_t step = plain + config.latent.value_dim;
  const std::int64_t dim = config.latent.dim;
  const bool quantised = block_elements(both.type) > 1;
  const DType type = latent_key_type(both.type);
  const NewView keys = allocate(type, config.heads * dim, plain);
  const auto size = static_cast<std::size_t>(block_bytes(type));
  const std::uint64_t stored = *row_bytes(both.type, static_cast<std::uint64_t>(dim));
  std::vector<float> values(quantised ? static_cast<std::size_t>(dim) : 0);
  for (std::int64_t head = 0; head < config.heads; ++head) {
    for (std::int64_t c = 0; c < plain; ++c) {
      const ByteSpan row = both.bytes.subspan(static_cast<std::uint64_t>(head * step + c) * stored, stored);
      if (quantised) decode_row(both.type, row, values);
      const std::byte* from = quantised ? std::as_bytes(std::span(values)).data() : row.data();
      std::byte* to = keys.data + static_cast<std::size_t>(head * dim * plain + c) * size;
      for (std::int64_t r = 0; r < dim; ++r, from += size, to += static_cast<std::size_t>(plain) * size) {
        std::memcpy(to, from, size);
      }
    }
  }
  return keys.view;
}

WeightView latent_values(const ModelConfig& config, const WeightView& both) {
  const std::int64_t plain = plain_dim(config);
  const std::int64_t count = config.latent.value_dim;
  const NewView values = allocate(both.type, config.heads * count, config.latent.dim);
  const std::uint64_t row = *row_bytes(both.type, static_cast<std::uint64_t>(config.latent.dim));
  const std::uint64_t size = row * static_cast<std::uint64_t>(count);
  for (std::int64_t head = 0; head < config.heads; ++head) {
    const auto first = static_cast<std::uint64_t>(head * (plain + count) + plain);
    std::memcpy(values.data + static_cast<std::uint64_t>(head) * size, both.bytes.data() + first * row, size);
  }
  return values.view;
}

}  // namespace butterfly
