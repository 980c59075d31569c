// butterfly embed: vectors of texts. butterfly fill: the likeliest words in the place of a mask.
#include "butterfly/infer/request/embed.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "butterfly/base/json.h"
#include "butterfly/base/read_file.h"
#include "butterfly/base/text/one_line.h"
#include "butterfly/infer/request/fill.h"
#include "butterfly/model/format/open_checkpoint.h"
#include "butterfly/trace/trace.h"
#include "commands.h"
#include "shared/running.h"

namespace butterfly::app {
namespace {

/// Texts of the command line, of a file, or of standard input.
struct TextInput {
  std::vector<std::string> texts;
  std::string file;

  void add_to(Command command) {
    auto given = command.add_option("texts", texts, "Texts; none: one a line from --file, or from standard input");
    command.add_option("-f,--file", file, "UTF-8 file with one text a line, - for standard input").excludes(given);
  }

  /// Errors: kInvalidArgument where there is no text.
  Result<std::vector<std::string>> read() const {
    if (!texts.empty()) return texts;
    const std::string path = file.empty() || file == "-" ? "/dev/stdin" : file;
    BF_ASSIGN_OR_RETURN(const std::string all, read_file(path, kAnySize));
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = std::min(all.find('\n', at), all.size());
      std::string line = all.substr(at, end - at);
      if (line.ends_with('\r')) line.pop_back();
      lines.push_back(std::move(line));
      at = end + 1;
    }
    if (lines.empty())
      return make_error(ErrorCode::kInvalidArgument, "{} has no line, at least 1 text is needed", path);
    return lines;
  }
};

struct EmbedCommand {
  InferenceFlags flags;
  TextInput input;
  std::string pooling, prompt_name;
  int dim = 0;
  int batch = 2048;
  bool no_normalize = false;
  bool json = false;
};

struct FillCommand {
  InferenceFlags flags;
  TextInput input;
  int choices = 5;
  int batch = 2048;
  bool json = false;
};

/// The tokens of a text as the model was taught them, with those that open and close a text; of longer ones
/// the end is cut off, but for the token that closes them.
Result<std::vector<TokenId>> encode_text(const Tokenizer& tokenizer, const std::string& text, int tokens_max,
                                         std::size_t& cut) {
  BF_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.encode(text, {.add_eos = true}));
  const Vocabulary& vocabulary = tokenizer.vocabulary();
  if (tokens.empty()) return make_error(ErrorCode::kInvalidArgument, "a text is empty: this model has no token for it");
  if (tokens.size() > static_cast<std::size_t>(tokens_max)) {
    const TokenId last = tokens.back();
    const auto type = static_cast<std::size_t>(last.value) < vocabulary.types.size()
                          ? vocabulary.types[static_cast<std::size_t>(last.value)]
                          : TokenType::kNormal;
    tokens.resize(static_cast<std::size_t>(tokens_max));
    if (type == TokenType::kControl) tokens.back() = last;
    ++cut;
  }
  return tokens;
}

TextBatchOptions batch_options(int rows_max, bool quiet) {
  TextBatchOptions options{.rows_max = rows_max};
  if (!quiet && isatty(STDERR_FILENO) != 0) {
    options.progress = [](std::uint64_t done, std::uint64_t total) {
      std::fprintf(stderr, "\r%llu of %llu texts", static_cast<unsigned long long>(done),
                   static_cast<unsigned long long>(total));
      if (done == total) std::fprintf(stderr, "\r\033[K");
    };
  }
  return options;
}

/// Opens and deploys the model for `output`.
Result<OpenModel> open_for(const InferenceConfig& config, OutputKind output) {
  return open_model(config, [output](ModelConfig& model) -> Status {
    if (output == OutputKind::kLogits && (!model.encodes_only() || model.output != OutputKind::kLogits)) {
      return make_error(ErrorCode::kInvalidArgument, "{} is {}, masks are filled by encoders with a masked-LM head",
                        model.name, model.encodes_only() ? "an encoder without one" : "no encoder");
    }
    // An encoder and a decoder: the vector is the encoder's.
    if (output == OutputKind::kHidden && model.has_decoder()) {
      return make_error(ErrorCode::kUnsupported,
                        "{} has a decoder behind its encoder, vectors come from models of one of them", model.name);
    }
    model.output = output;
    return {};
  });
}

Status write_out(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) return make_error(ErrorCode::kIo, "standard output cannot be written");
  return {};
}

/// The recipe as the files and the flags say it, and the text of the prompt.
Result<EmbeddingRecipe> recipe_of(const EmbedCommand& command, const Checkpoint& checkpoint, std::string& prompt) {
  BF_ASSIGN_OR_RETURN(EmbeddingRecipe recipe, read_embedding_recipe(checkpoint));
  if (!command.pooling.empty()) {
    BF_ASSIGN_OR_RETURN(const Pooling pooling, parse_pooling(command.pooling));
    recipe.poolings = {pooling};
  }
  const std::string name = command.prompt_name.empty() ? recipe.default_prompt : command.prompt_name;
  if (name.empty()) return recipe;
  const auto found = recipe.prompts.find(name);
  if (found == recipe.prompts.end()) {
    std::vector<std::string> known;
    for (const auto& [one, text] : recipe.prompts) known.push_back(one);
    return make_error(ErrorCode::kInvalidArgument, "{} has no prompt named \"{}\"; there are {}", checkpoint.path,
                      one_line(name), known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")));
  }
  prompt = found->second;
  return recipe;
}

std::string to_line(const std::vector<float>& vector) {
  return fmt::format("{}\n", fmt::join(vector, " "));
}

Result<int> run(const EmbedCommand& command) {
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_config(command.flags));
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> texts, command.input.read());
  BF_ASSIGN_OR_RETURN(OpenModel model, open_for(config, OutputKind::kHidden));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(model.checkpoint.vocabulary));
  EmbedOptions options{.normalize = !command.no_normalize, .dim = command.dim};
  std::string prompt;
  BF_ASSIGN_OR_RETURN(options.recipe, recipe_of(command, model.checkpoint, prompt));
  options.batches = batch_options(command.batch, config.quiet);
  const int context = model.checkpoint.config.context;
  const int tokens_max = options.recipe.tokens_max > 0 ? std::min(options.recipe.tokens_max, context) : context;
  std::size_t cut = 0;
  std::size_t tokens = 0;
  std::int32_t prompt_tokens = 0;
  if (!prompt.empty()) {
    BF_ASSIGN_OR_RETURN(const auto ids, tokenizer.encode(prompt));
    prompt_tokens = static_cast<std::int32_t>(ids.size());
  }
  std::vector<EmbedText> encoded;
  for (const std::string& text : texts) {
    BF_ASSIGN_OR_RETURN(auto ids, encode_text(tokenizer, prompt + text, tokens_max, cut));
    tokens += ids.size();
    encoded.push_back({std::move(ids), prompt_tokens});
  }
  if (cut > 0 && !config.quiet) {
    std::fprintf(stderr, "%zu of %zu texts were cut to the %d tokens that the model reads\n", cut, texts.size(),
                 tokens_max);
  }
  const std::uint64_t begin = trace::now_ns();
  BF_ASSIGN_OR_RETURN(const auto vectors,
                      embed(model.deployment->pipeline(), model.checkpoint.config, encoded, options, interrupted()));
  const double seconds = static_cast<double>(trace::now_ns() - begin) * 1e-9;
  if (model.deployment->epochs().size() > 1) BF_TRY(checkpoint_unchanged(model.checkpoint.path));
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const nlohmann::ordered_json line{{"text", texts[i]}, {"tokens", encoded[i].tokens.size()}, {"vector", vectors[i]}};
    BF_TRY(write_out(command.json ? dump_json(line) + "\n" : to_line(vectors[i])));
  }
  if (!config.quiet) {
    std::fprintf(stderr, "%zu texts, %zu tokens: %.1f texts/s, %.1f tokens/s | %zu elements each\n", texts.size(),
                 tokens, static_cast<double>(texts.size()) / seconds, static_cast<double>(tokens) / seconds,
                 vectors.front().size());
  }
  return kExitOk;
}

Result<int> run(const FillCommand& command) {
  BF_ASSIGN_OR_RETURN(InferenceConfig config, read_config(command.flags));
  BF_ASSIGN_OR_RETURN(const std::vector<std::string> texts, command.input.read());
  BF_ASSIGN_OR_RETURN(OpenModel model, open_for(config, OutputKind::kLogits));
  BF_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(model.checkpoint.vocabulary));
  FillOptions options{.choices = command.choices, .batches = batch_options(command.batch, config.quiet)};
  BF_ASSIGN_OR_RETURN(options.mask, mask_token(tokenizer.vocabulary()));
  std::vector<std::vector<TokenId>> encoded;
  std::size_t cut = 0;
  for (const std::string& text : texts) {
    BF_ASSIGN_OR_RETURN(auto ids, encode_text(tokenizer, text, model.checkpoint.config.context, cut));
    encoded.push_back(std::move(ids));
  }
  BF_ASSIGN_OR_RETURN(const auto masks,
                      fill(model.deployment->pipeline(), model.checkpoint.config, encoded, options, interrupted()));
  if (model.deployment->epochs().size() > 1) BF_TRY(checkpoint_unchanged(model.checkpoint.path));
  for (std::size_t i = 0; i < masks.size(); ++i) {
    nlohmann::ordered_json line{{"text", texts[i]}};
    std::string lines = fmt::format("{}{}\n", i == 0 ? "" : "\n", one_line(texts[i]));
    for (std::size_t m = 0; m < masks[i].size(); ++m) {
      if (masks[i].size() > 1) lines += fmt::format("mask {}\n", m + 1);
      nlohmann::ordered_json choices;
      for (const FillChoice& choice : masks[i][m].choices) {
        const std::string piece = tokenizer.piece(choice.token, Tokenizer::Control::kShown);
        lines += fmt::format("  {:.4f}  {:7}  {}\n", choice.probability, choice.token.value, one_line(piece));
        choices.push_back({{"token", choice.token.value}, {"text", piece}, {"score", choice.probability}});
      }
      line["masks"].push_back({{"position", masks[i][m].position}, {"choices", choices}});
    }
    BF_TRY(write_out(command.json ? dump_json(line) + "\n" : lines));
  }
  return kExitOk;
}

}  // namespace

void add_embed(Command app, Action& action) {
  auto sub = app.add_subcommand("embed", "Vectors of texts, by an encoder or by the hidden rows of any model");
  auto command = std::make_shared<EmbedCommand>();
  add_inference_flags(sub, command->flags);
  command->input.add_to(sub);
  sub.add_option("--pooling", command->pooling,
                 "mean, cls, last, max, mean_sqrt or weightedmean (default: what the model's files say; else mean for "
                 "encoders, last for others)");
  sub.add_option("--dim", command->dim,
                 "Elements at the front that are kept, for models that were taught it (Matryoshka)")
      .in_range(1, 1 << 22);
  sub.add_flag("--no-normalize", command->no_normalize, "Leave the vectors as long as they come");
  sub.add_option("--prompt-name", command->prompt_name,
                 "Which of the model's prompts to put in front of the texts (default: the model's default, if any)");
  sub.add_option("--batch-tokens", command->batch, "Tokens of the texts that are computed side by side")
      .in_range(1, 1 << 16)
      .show_default();
  sub.add_flag("--json", command->json, "A JSON object a line: text, tokens, vector");
  sub.footer(
      "A line of numbers for each text, in their order. Neither the batch nor the number of nodes changes a bit of it. "
      "Examples:\n"
      "  butterfly embed -m all-MiniLM-L6-v2 'a text' 'another'\n"
      "  butterfly embed -m bge-small.gguf --file lines.txt --workers 127.0.0.1:7001,127.0.0.1:7002\n"
      "  butterfly embed -m Qwen3-Embedding-0.6B --prompt-name query --dim 256 --json < questions.txt");
  run_later(sub, action, [command] { return run(*command); });
}

void add_fill(Command app, Action& action) {
  auto sub = app.add_subcommand("fill", "The likeliest tokens in the place of a mask, by an encoder");
  auto command = std::make_shared<FillCommand>();
  add_inference_flags(sub, command->flags);
  command->input.add_to(sub);
  sub.add_option("--choices", command->choices, "Tokens for each mask").in_range(1, 1 << 20).show_default();
  sub.add_option("--batch-tokens", command->batch, "Tokens of the texts that are computed side by side")
      .in_range(1, 1 << 16)
      .show_default();
  sub.add_flag("--json", command->json, "A JSON object a line: text, and for each mask its position and choices");
  sub.footer(
      "A text says [MASK] or <mask>, as its model does. Each line has the probability, the id and the token. Example:\n"
      "  butterfly fill -m bert-base-uncased 'Paris is the [MASK] of France.'");
  run_later(sub, action, [command] { return run(*command); });
}

}  // namespace butterfly::app
