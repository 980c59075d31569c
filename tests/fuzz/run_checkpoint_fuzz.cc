// Any text as the manifest and as the state of a saved run: refused with a message, or read without harm.
#include "butterfly/train/checkpoint/run_checkpoint.h"
#include "seeds.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace butterfly;
  const std::string folder = fuzz::corpus_folder(*argc, *argv);
  if (folder.empty()) return 0;
  const RunState state{.step = 7,
                       .updates = 6,
                       .guard = {1.5, 0.25},
                       .fingerprint = std::string(64, 'a'),
                       .train_tokens = 1000,
                       .unigram_entropy = 2.5,
                       .parameters = {{.name = "token_embd.weight", .rows = 4, .cols = 8, .offset = 16}}};
  fuzz::write_seed(folder, "state", to_json(state));
  fuzz::write_seed(
      folder, "manifest",
      R"({"format":1,"files":[{"name":"weights.f32","bytes":128,"sha256":")" + std::string(64, 'a') + "\"}]}");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace butterfly;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto files = parse_manifest(text, "input");
  if (!files && files.error().message.empty()) std::abort();
  if (files) {
    for (const CheckpointFile& file : *files) {
      if (file.name.find('/') != std::string::npos || file.name.starts_with('.')) std::abort();
    }
  }
  const auto state = parse_run_state(text, "input");
  if (!state && state.error().message.empty()) std::abort();
  // What is read is written alike.
  if (state && !parse_run_state(to_json(*state), "again")) std::abort();
  return 0;
}
