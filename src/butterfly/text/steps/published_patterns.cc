#include "butterfly/text/steps/published_patterns.h"

#include <algorithm>

namespace butterfly {

namespace {

// As their models' tokenizer.json has them, where it is known.
constexpr std::string_view kDefaultPunctuation = R"p([\p{P}\$\+<=>\^~\|]+)p";
constexpr std::string_view kNumber = R"p(\p{N})p";
constexpr std::string_view kNumbers = R"p(\p{N}+)p";
constexpr std::string_view kNumberGroups = R"p(\p{N}{1,3})p";
constexpr std::string_view kThreeDigits = R"p([0-9][0-9][0-9])p";
constexpr std::string_view kNewlines = R"p([\r\n])p";
constexpr std::string_view kLines = R"p([^\n]+|[\n]+)p";
constexpr std::string_view kSpacesAtEnd = R"p(\s+$)p";
constexpr std::string_view kDeepSeekPunctuation = R"p(\s?[!-/:-~！-／：-～‘-‟　-。]+)p";
constexpr std::string_view kDeepSeekHan = R"p([一-龥ࠀ-一가-퟿]+)p";
constexpr std::string_view kDeepSeekLetters =
    R"p(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)p";
constexpr std::string_view kLettersAfterSpace = R"p(\s?\p{L}+)p";
constexpr std::string_view kPunctuationAfterSpace = R"p(\s?\p{P}+)p";
constexpr std::string_view kHanAndKana = R"p([一-龥぀-ゟ゠-ヿ]+)p";
constexpr std::string_view kDeepSeek3Pattern =
    R"p([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)p";
constexpr std::string_view kSparkPattern =
    R"p([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)p";
constexpr std::string_view kYoutuScripts =
    R"p([가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+)p";
constexpr std::string_view kYoutuPattern =
    R"p([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)p";
constexpr std::string_view kFalconPunctuation = R"p([\p{P}\$\+<=>\^~\|`]+)p";
constexpr std::string_view kQwen35Pattern =
    R"p((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)p";
constexpr std::string_view kBloomPattern = R"p( ?[^(\s|.,!?…。，、।۔،)]+)p";
constexpr std::string_view kChameleonSentinels = R"p(<sentinel:[0-9]+>)p";
constexpr std::string_view kChameleonImages = R"p((IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z)p";
constexpr std::string_view kChameleonSpaces = R"p(([\t\n]|    |  ))p";
constexpr std::string_view kChameleonPunctuation = R"p([\p{P}!-/:-@\[-`{-~])p";
constexpr std::string_view kBailingPattern =
    R"p('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)p";
constexpr std::string_view kSeedCoderPattern =
    R"p((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)p";
constexpr std::string_view kUfakzekaPattern =
    R"p([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)p";
constexpr std::string_view kAsianScripts =
    R"p([一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+)p";
constexpr std::string_view kExaoneMoePattern =
    R"p((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)p";
constexpr std::string_view kExaoneMoeLinear =
    R"p((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*+(?: \p{L}\p{M}*+)*+)++|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)p";
constexpr std::string_view kMiniCpmPattern =
    R"p((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)p";
constexpr std::string_view kJais2Pattern =
    R"p((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1})p";

constexpr auto kNamedPreTokenizers = std::to_array<NamedPreTokenizer>({
    {.name = "llama-bpe", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "llama3", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "llama-v3", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "falcon3", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "falcon-h1", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "pixtral", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "midm-2.0", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "lfm2", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "jina-v5-nano", .slots = {kLlama3Pattern}, .ignore_merges = true, .add_bos = true},
    {.name = "gpt-2", .slots = {kGpt2Pattern}},
    {.name = "phi-2", .slots = {kGpt2Pattern}},
    {.name = "jina-es", .slots = {kGpt2Pattern}},
    {.name = "jina-de", .slots = {kGpt2Pattern}},
    {.name = "gigachat", .slots = {kGpt2Pattern}},
    {.name = "jina-v2-es", .slots = {kGpt2Pattern}},
    {.name = "jina-v2-de", .slots = {kGpt2Pattern}},
    {.name = "a.x-4.0", .slots = {kGpt2Pattern}},
    {.name = "mellum", .slots = {kGpt2Pattern}},
    {.name = "modern-bert", .slots = {kGpt2Pattern}},
    {.name = "exaone4", .slots = {kGpt2Pattern}},
    {.name = "mpt", .slots = {kGpt2Pattern}},
    {.name = "olmo", .slots = {kGpt2Pattern}},
    {.name = "jais", .slots = {kGpt2Pattern}},
    {.name = "trillion", .slots = {kGpt2Pattern}},
    {.name = "granite-docling", .slots = {kGpt2Pattern}},
    {.name = "jina-v1-en", .slots = {kGpt2Pattern}, .add_sep = true},
    {.name = "jina-v2-code", .slots = {kGpt2Pattern}, .add_sep = true},
    {.name = "roberta-bpe", .slots = {kGpt2Pattern}, .add_sep = true},
    {.name = "qwen2", .slots = {kQwen2Pattern}},
    {.name = "deepseek-r1-qwen", .slots = {kQwen2Pattern}},
    {.name = "kormo", .slots = {kQwen2Pattern}},
    {.name = "f2llmv2", .slots = {kQwen2Pattern}},
    {.name = "stablelm2", .slots = {kQwen2Pattern}},
    {.name = "megrez", .slots = {kQwen2Pattern}},
    {.name = "hunyuan", .slots = {kQwen2Pattern}},
    {.name = "solar-open", .slots = {kQwen2Pattern}},
    {.name = "grok-2", .slots = {kQwen2Pattern}},
    {.name = "dbrx", .slots = {kLlama3Pattern}},
    {.name = "smaug-bpe", .slots = {kLlama3Pattern}},
    {.name = "chatglm-bpe", .slots = {kLlama3Pattern}},
    {.name = "glm4", .slots = {kLlama3Pattern}, .ignore_merges = true},
    {.name = "glm5", .slots = {kLlama3Pattern}, .ignore_merges = true},
    {.name = "default", .slots = {kDefaultPunctuation, kGpt2Pattern, kNumbers, kThreeDigits}},
    {.name = "deepseek-llm",
     .slots = {kNewlines, kDeepSeekLetters, kDeepSeekPunctuation, kSpacesAtEnd, kDeepSeekHan, kNumbers}},
    {.name = "deepseek-coder", .slots = {kNewlines, kLettersAfterSpace, kPunctuationAfterSpace, kDeepSeekHan, kNumber}},
    {.name = "deepseek-v3", .slots = {kNumberGroups, kHanAndKana, kDeepSeek3Pattern}},
    {.name = "hunyuan-dense", .slots = {kNumberGroups, kHanAndKana, kDeepSeek3Pattern}},
    {.name = "joyai-llm", .slots = {kNumberGroups, kHanAndKana, kDeepSeek3Pattern}},
    {.name = "hy_v4", .slots = {kNumberGroups, kHanAndKana, kDeepSeek3Pattern}},
    {.name = "spark2_5", .slots = {kNumberGroups, kHanAndKana, kSparkPattern, kNumber}},
    {.name = "youtu", .slots = {kYoutuScripts, kYoutuPattern}, .ignore_merges = true},
    {.name = "falcon", .slots = {kFalconPunctuation, kGpt2Pattern, kThreeDigits}},
    {.name = "starcoder", .slots = {kNumber, kGpt2Pattern}},
    {.name = "refact", .slots = {kNumber, kGpt2Pattern}},
    {.name = "command-r", .slots = {kNumber, kGpt2Pattern}},
    {.name = "smollm", .slots = {kNumber, kGpt2Pattern}},
    {.name = "codeshell", .slots = {kNumber, kGpt2Pattern}},
    {.name = "exaone", .slots = {kNumber, kGpt2Pattern}},
    {.name = "minerva-7b", .slots = {kNumber, kGpt2Pattern}},
    {.name = "mellum2", .slots = {kNumber, kGpt2Pattern}},
    {.name = "qwen35", .slots = {kQwen35Pattern}},
    {.name = "bloom", .slots = {kBloomPattern}},
    {.name = "poro-chat", .slots = {kBloomPattern}},
    {.name = "gpt3-finnish", .slots = {kBloomPattern}},
    {.name = "viking", .slots = {kBloomPattern, kNumber}},
    {.name = "tekken", .slots = {kTekkenPattern}, .ignore_merges = true, .add_bos = true},
    {.name = "chameleon",
     .slots = {kChameleonSentinels, kChameleonImages, kChameleonSpaces, kNumber, kChameleonPunctuation, kGpt2Pattern},
     .add_bos = true},
    {.name = "gpt-4o", .slots = {kO200kPattern}},
    {.name = "llama4", .slots = {kO200kPattern}},
    {.name = "kanana2", .slots = {kO200kPattern}},
    {.name = "talkie", .slots = {kO200kPattern}},
    {.name = "minimax-m2", .slots = {kO200kPattern}},
    {.name = "granite-embed-multi-97m", .slots = {kO200kPattern}, .ignore_merges = true},
    {.name = "tiny_aya", .slots = {kDigitGroupsPattern, kO200kPattern}},
    {.name = "cohere2moe", .slots = {kDigitGroupsPattern, kO200kPattern}},
    {.name = "kimi-k2", .slots = {kKimiPattern}},
    {.name = "superbpe", .slots = {kDigitGroupsPattern}},
    {.name = "bailingmoe", .slots = {kBailingPattern}},
    {.name = "bailingmoe2", .slots = {kBailingPattern}},
    {.name = "llada-moe", .slots = {kBailingPattern}},
    {.name = "seed-coder", .slots = {kSeedCoderPattern}},
    {.name = "ufakzeka", .slots = {kUfakzekaPattern}},
    {.name = "afmoe", .slots = {kDigitGroupsPattern, kAsianScripts, kDeepSeek3Pattern}},
    {.name = "laguna", .slots = {kLines, kQwen2Pattern}},
    {.name = "exaone-moe", .slots = {kExaoneMoePattern}},
    {.name = "gemma4", .slots = {kLines}, .ignore_merges = true, .add_bos = true, .visible_spaces = true},
    {.name = "granite-embed-multi-311m",
     .slots = {kLines},
     .ignore_merges = true,
     .add_bos = true,
     .visible_spaces = true},
    {.name = "sarvam-moe", .slots = {kLines}, .visible_spaces = true},
    {.name = "minicpm5", .slots = {kNumberGroups, kMiniCpmPattern}, .ignore_merges = true},
    {.name = "jais-2", .slots = {kJais2Pattern}},
});

}  // namespace

std::span<const NamedPreTokenizer> named_pre_tokenizers() {
  return kNamedPreTokenizers;
}

const NamedPreTokenizer* find_pre_tokenizer(std::string_view name) {
  const auto* found = std::ranges::find(kNamedPreTokenizers, name, &NamedPreTokenizer::name);
  return found == kNamedPreTokenizers.end() ? nullptr : found;
}

std::string_view linear_pattern(std::string_view expression) {
  // From every place in a run of spaces to its end, unless a match may only begin where the run does.
  if (expression == kSpacesAtEnd) return R"((?<!\s)\s+$)";
  // Nothing stands behind the repeats that could make them give characters back.
  if (expression == kExaoneMoePattern) return kExaoneMoeLinear;
  if (expression == kCl100kPattern) return kCl100kPattern;
  for (const NamedPreTokenizer& named : kNamedPreTokenizers) {
    for (std::string_view pattern : named.patterns()) {
      if (pattern == expression) return pattern;
    }
  }
  return {};
}

}  // namespace butterfly
