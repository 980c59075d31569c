// Any bytes as a SentencePiece model: refused with a message, or a tokenizer that turns texts into ids of its
// vocabulary and ids into UTF-8.
#include "butterfly/model/format/tokenizer/sentencepiece_model.h"
#include "seeds.h"
#include "use_tokenizer.h"

namespace {

std::string message(int field, const std::string& bytes) {
  return std::string(1, static_cast<char>(field * 8 + 2)) + static_cast<char>(bytes.size()) + bytes;
}

std::string number(int field, int value) {
  std::string key(1, static_cast<char>((field * 8) & 0x7F));
  if (field >= 16) key = {static_cast<char>(((field * 8) & 0x7F) | 0x80), static_cast<char>(field * 8 >> 7)};
  return key + static_cast<char>(value);
}

std::string piece(const std::string& text, float score, int type) {
  std::string bytes = message(1, text) + std::string(1, 2 * 8 + 5);
  bytes.append(reinterpret_cast<const char*>(&score), sizeof score);
  return message(1, bytes + number(3, type));
}

/// `model` is 1 to 4: Unigram, BPE, words, characters.
std::string seed(int model) {
  // A table of characters: 'A' becomes "a".
  std::string units(4 * 0x180, '\0');
  const auto set = [&](std::size_t at, std::uint32_t unit) {
    units.replace(at * 4, 4, reinterpret_cast<const char*>(&unit), 4);
  };
  set(0, 0x100u << 10);
  set(0x100u ^ 'A', (0x20u << 10) | 0x100u | 'A');
  set((0x100u ^ 'A') ^ 0x20u, 0x80000000u);
  const auto size = static_cast<std::uint32_t>(units.size());
  const std::string table = std::string(reinterpret_cast<const char*>(&size), 4) + units + std::string("a\0", 2);
  std::string length{static_cast<char>((table.size() & 0x7F) | 0x80), static_cast<char>(table.size() >> 7)};
  const std::string charsmap = std::string(1, 2 * 8 + 2) + length + table;
  std::string normalizer = charsmap + number(3, 1) + number(4, 1);
  length = {static_cast<char>((normalizer.size() & 0x7F) | 0x80), static_cast<char>(normalizer.size() >> 7)};
  return piece("<unk>", 0, 2) + piece("<s>", 0, 3) + piece("\u2581", -2, 1) + piece("a", -3, 1) + piece("b", -3, 1) +
         piece("\u2581a", -1, 1) + piece("ab", -1.5F, 1) + piece("<tool>", 0, 4) + piece("<0x0A>", 0, 6) +
         message(2, number(3, model) + number(35, 1) + number(24, model == 3 ? 1 : 0)) + std::string(1, 3 * 8 + 2) +
         length + normalizer;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string folder = butterfly::fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  for (int model = 1; model <= 4; ++model) {
    butterfly::fuzz::write_seed(folder, "seed_" + std::to_string(model), seed(model));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)butterfly::looks_like_sentencepiece(bytes);
  butterfly::fuzz::use_tokenizer(butterfly::read_sentencepiece_model(bytes, ""));
  return 0;
}
