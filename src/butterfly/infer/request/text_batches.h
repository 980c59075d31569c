// Whole texts through a pipeline, each once: several side by side in a step, the longest first, enough steps under way
// to keep every stage busy, and what was lost with a node done again. Which texts share a step shows in no bit.
#pragma once

#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/infer/deployment/pipeline.h"

namespace butterfly {

struct WholeText {
  std::vector<TokenId> tokens{};  // at least one
  std::int32_t rows_from = 0;     // the output is wanted of [rows_from, rows_to)
  std::int32_t rows_to = 0;       // 0: of all from there on
};

struct TextBatchOptions {
  BatchKind kind = BatchKind::kEncode;
  int rows_max = 2048;  // tokens of a step; a longer text has one of its own
  int context = 0;      // tokens that a text may have
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};  // texts
};

/// What came of text `index`: [rows wanted, width], to be read during the call.
using TextVisitor = std::function<Status(std::size_t index, std::span<const float> rows)>;

/// Calls `visit` once for each text, in any order. Errors: kInvalidArgument naming a text without tokens or with more
/// than the context; kCancelled; those of the pipeline that it cannot recover from, and of `visit`.
Status run_texts(Pipeline& pipeline, std::span<const WholeText> texts, const TextBatchOptions& options,
                 const TextVisitor& visit, std::stop_token stop = {});

}  // namespace butterfly
