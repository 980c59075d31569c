// The pre-tokenizers of published models: their regular expressions, and the names that GGUF files have for them.
// Immutable, thread-safe.
#pragma once

#include <array>
#include <span>
#include <string_view>

namespace butterfly {

inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// OpenAI's cl100k_base and o200k_base as tiktoken has them: possessive where backtracking could not help.
inline constexpr std::string_view kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
/// Runs of digits in threes counted from their end. Run without the expression, whose cost is quadratic.
inline constexpr std::string_view kDigitGroupsPattern = R"(\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N})))";

struct NamedPreTokenizer {
  std::string_view name;                    // tokenizer.ggml.pre
  std::array<std::string_view, 6> slots{};  // patterns and nothing behind them
  bool ignore_merges = false;
  bool add_bos = false;         // where the file does not say
  bool visible_spaces = false;  // pieces are spelled in UTF-8 with U+2581 for spaces, not in the byte alphabet
  bool add_sep = false;

  /// Each cuts what the ones before it left.
  std::span<const std::string_view> patterns() const {
    std::size_t count = 0;
    while (count < slots.size() && !slots[count].empty()) ++count;
    return {slots.data(), count};
  }
};

/// Every name that llama.cpp knows, in no order. Of several with equal patterns the first is the one to write.
std::span<const NamedPreTokenizer> named_pre_tokenizers();

/// Null where the name is unknown.
const NamedPreTokenizer* find_pre_tokenizer(std::string_view name);

/// An expression with the same matches whose time is linear in the text; empty where `expression` is not published.
std::string_view linear_pattern(std::string_view expression);

}  // namespace butterfly
