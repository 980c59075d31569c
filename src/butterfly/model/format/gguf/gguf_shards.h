// Models in several GGUF files, NAME-00001-of-00003.gguf and so on: the first has all metadata, each has tensors of its
// own, and split.no and split.count say which it is. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/format/gguf/gguf.h"

namespace butterfly {

/// The files of the model of which `path` is the first, by their names; `path` alone where its name says nothing.
std::vector<std::string> gguf_shards(const std::string& path);

/// Adds the tensors of the other files of the model to `first`, which came from `path`. Their mappings keep what they
/// hold. Errors: those of opening and parsing; kInvalidArgument for another than the first file; kBadData naming both
/// values that disagree.
Result<std::vector<std::shared_ptr<const MappedFile>>> add_gguf_shards(const std::string& path, GgufFile& first);

}  // namespace butterfly
