// Valid inputs to start from, made by the fuzzers themselves: libFuzzer mutates what its corpus folder holds.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace butterfly::fuzz {

/// The corpus folder: the first argument that is a directory; empty where there is none.
inline std::string corpus_folder(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::filesystem::is_directory(argv[i])) return argv[i];
  }
  return {};
}

inline void write_seed(const std::string& folder, const std::string& name, const std::string& content) {
  std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

/// Texts as the corpus of a fuzzer that was given a folder: seed_0, seed_1, ...
template <typename Texts>
void write_seeds(int argc, char** argv, const Texts& texts) {
  const std::string folder = corpus_folder(argc, argv);
  if (folder.empty()) return;
  int number = 0;
  for (const char* text : texts) write_seed(folder, "seed_" + std::to_string(number++), text);
}

}  // namespace butterfly::fuzz
