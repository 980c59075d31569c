#include "tokenize/tokenize_corpus.h"

#include <unistd.h>

#include <cstdio>

#include "butterfly/base/clock.h"
#include "butterfly/base/units.h"
#include "butterfly/model/files/mapped_file.h"
#include "butterfly/model/files/pending_file.h"
#include "butterfly/model/format/tokenizer/tokenizer_json_writer.h"
#include "butterfly/text/bpe_trainer.h"
#include "butterfly/train/data/token_file.h"
#include "butterfly/train/data/token_source.h"

namespace butterfly::app {
namespace {

/// A percentage on a terminal, nothing elsewhere.
void show_progress(std::uint64_t done, std::uint64_t total) {
  if (::isatty(STDERR_FILENO) == 0 || total == 0) return;
  std::fprintf(stderr, "\r%3.0f %% of %s%s", 100.0 * static_cast<double>(done) / static_cast<double>(total),
               format_bytes(total).c_str(), done == total ? "\n" : "");
}

}  // namespace

Status train_tokenizer(const TrainTokenizerCommand& command) {
  const auto begin = std::chrono::steady_clock::now();
  PendingFile out(command.out);
  BF_TRY(out.open());  // before the work, which would be in vain
  BF_ASSIGN_OR_RETURN(BpeTrainer trainer, BpeTrainer::create({.vocab = command.vocab}));
  std::uint64_t bytes = 0;
  for (const std::string& path : command.files) {
    BF_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
    const Status added = trainer.add(as_text(file->bytes()));
    if (!added) return make_error(added.error().code, "{}: {}", path, added.error().message);
    BF_TRY(file->unchanged());
    bytes += file->bytes().size();
  }
  BF_ASSIGN_OR_RETURN(const Vocabulary vocabulary, trainer.train());
  BF_ASSIGN_OR_RETURN(const std::string json, write_tokenizer_json(vocabulary));
  BF_TRY(out.write(json.data(), json.size()));
  BF_TRY(out.commit());
  std::fprintf(stderr, "%s: %d tokens learned from %s of text in %.1f s\n", command.out.c_str(), vocabulary.size(),
               format_bytes(bytes).c_str(), seconds_since(begin));
  if (vocabulary.size() < command.vocab) {
    std::fprintf(stderr, "%d tokens were asked for: no other pair of tokens is in the text\n", command.vocab);
  }
  return {};
}

Status pack_tokens(const std::vector<std::string>& files, const Tokenizer& tokenizer, const std::string& out) {
  const auto begin = std::chrono::steady_clock::now();
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  std::uint64_t bytes = 0;
  BF_ASSIGN_OR_RETURN(TokenFileWriter writer, TokenFileWriter::create(out, vocabulary.size(), hash_of(vocabulary)));
  for (const std::string& path : files) {
    BF_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
    const std::uint64_t size = file->bytes().size();
    const Status packed = encode_document(
        tokenizer, as_text(file->bytes()), [&](std::span<const TokenId> ids) { return writer.append(ids); },
        [&](std::uint64_t done) { show_progress(done, size); });
    if (!packed) return make_error(packed.error().code, "{}: {}", path, packed.error().message);
    BF_TRY(file->unchanged());
    bytes += size;
  }
  BF_TRY(writer.finish());
  std::fprintf(stderr, "%s: %lu tokens (%.2f bytes each) of %s of text in %.1f s\n", out.c_str(),
               static_cast<unsigned long>(writer.count()),
               static_cast<double>(bytes) / static_cast<double>(writer.count()), format_bytes(bytes).c_str(),
               seconds_since(begin));
  return {};
}

}  // namespace butterfly::app
