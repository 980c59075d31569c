// Any bytes as the index of a file of packed weights, with checksums that hold: refused with a message, or every weight
// that it names lies within the file.
#include <cstring>

#include "butterfly/base/hash/crc32c.h"
#include "butterfly/model/packed/packed_part.h"
#include "butterfly/tensor/aligned_buffer.h"
#include "seeds.h"

namespace {

constexpr std::size_t kDataBytes = 12288;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace butterfly;
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  const std::uint32_t sum = crc32c(std::vector<std::byte>(64));
  fuzz::write_seed(folder, "vector",
                   fmt::format(R"({{"norm.weight":{{"part":[1,16,0,1,0,16],"packed":false,"type":0,"at":4096,)"
                               R"("bytes":64,"sums":[{}]}}}})",
                               sum));
  fuzz::write_seed(folder, "matrix",
                   fmt::format(R"({{"w.weight":{{"part":[16,1,0,16,0,1],"packed":true,"type":0,"at":8192,)"
                               R"("bytes":64,"sums":[{}]}}}})",
                               sum));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  static ThreadTeam team(1);
  AlignedBuffer file = *AlignedBuffer::create(kDataBytes + size);
  std::memset(file.data(), 0, kDataBytes);
  const ByteSpan index = std::as_bytes(std::span(data, size));
  const std::uint32_t words[2] = {1, crc32c(index)};
  const std::uint64_t place[2] = {kDataBytes, size};
  std::memcpy(file.data(), "BFPACKED", 8);
  std::memcpy(file.data() + 8, words, sizeof(words));
  std::memcpy(file.data() + 16, place, sizeof(place));
  if (size > 0) std::memcpy(file.data() + kDataBytes, data, size);
  const auto part = PackedPart::read({file.data(), kDataBytes + size}, nullptr, "input", team, PartCheck::kBytes);
  if (!part) {
    if (part.error().message.empty()) std::abort();
    return 0;
  }
  for (const WeightInfo& weight : (*part)->list()) {
    const auto all = WeightPart::all(weight.rows, weight.cols);
    const auto matrix = (*part)->find_packed(weight.name, all);
    const auto view = (*part)->find_part(weight.name, all);
    const ByteSpan bytes = matrix ? matrix->packed() : view ? view->bytes : ByteSpan{};
    if (!bytes.empty()) crc32c(bytes);
  }
  return 0;
}
