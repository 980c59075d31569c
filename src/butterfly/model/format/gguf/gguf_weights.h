// A GGUF file as a Checkpoint: configuration, vocabulary, and a WeightSource over its bytes.
// gpt2 files keep Q, K and V in one matrix; the source hands out its three parts under the canonical names.
#pragma once

#include <memory>
#include <string>

#include "butterfly/base/bytes.h"
#include "butterfly/base/result.h"
#include "butterfly/model/core/checkpoint.h"
#include "butterfly/model/files/mapped_file.h"

namespace butterfly {

/// The file behind open_checkpoint. Errors as there.
Result<Checkpoint> open_gguf(std::shared_ptr<const MappedFile> file, const OpenOptions& options);

/// The same over bytes in memory that outlive the checkpoint. `source` names them in messages.
Result<Checkpoint> open_gguf_bytes(ByteSpan bytes, const std::string& source, const OpenOptions& options);

}  // namespace butterfly
