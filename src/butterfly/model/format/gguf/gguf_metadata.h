// A model's configuration and vocabulary as GGUF metadata, under the keys that other programs read too.
#pragma once

#include <optional>

#include "butterfly/base/result.h"
#include "butterfly/model/core/config.h"
#include "butterfly/model/format/gguf/gguf_writer.h"
#include "butterfly/text/vocabulary.h"

namespace butterfly {

/// `config.rope` without llama3 scaling (see with_explicit_factors). Errors: kUnsupported for a configuration that
/// read_gguf_config would read as another.
Status write_gguf_config(const ModelConfig& config, GgufWriter& writer,
                         std::optional<std::uint32_t> file_type = std::nullopt);

/// Pads the vocabulary with unused pieces up to `size`, the rows of the embedding, as other programs expect.
void write_gguf_vocabulary(const Vocabulary& vocabulary, int size, GgufWriter& writer);

}  // namespace butterfly
