// Any bytes as a file of packed tokens: refused with a message, or readable to the last token.
#include <cstdlib>
#include <vector>

#include "butterfly/train/data/token_file.h"
#include "seeds.h"

namespace {

std::string packed(int vocab) {
  const std::string path = std::filesystem::temp_directory_path() / ("token_file_fuzz." + std::to_string(vocab));
  auto writer = butterfly::TokenFileWriter::create(path, vocab, {});
  const std::vector<butterfly::TokenId> ids{butterfly::TokenId(1), butterfly::TokenId(vocab - 1)};
  if (!writer || !writer->append(ids) || !writer->finish()) std::abort();
  std::ifstream in(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  std::filesystem::remove(path);
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace butterfly;
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  fuzz::write_seed(folder, "narrow", packed(300));
  fuzz::write_seed(folder, "wide", packed(1 << 20));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  const auto file = TokenFile::parse(ByteSpan(reinterpret_cast<const std::byte*>(data), size), "input");
  if (!file) {
    if (file.error().message.empty()) std::abort();
    return 0;
  }
  if (file->vocab() < 1 || file->tokens().size() < 1) std::abort();
  std::vector<TokenId> ids(static_cast<std::size_t>(file->tokens().size()));
  file->tokens().copy(0, ids);
  std::int64_t sum = 0;
  for (TokenId id : ids) sum += id.value;
  static volatile std::int64_t sink = 0;  // keeps the reads
  sink = sink + sum;
  return 0;
}
