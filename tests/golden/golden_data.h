// Where golden tests find references: committed ones beside this file, larger outside ones where the environment
// variable BUTTERFLY_DATA, or a folder shared/data beside the repository, has them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace butterfly::golden {

inline constexpr const char* kNoData = "SKIPPED: the outside reference data is not here (set BUTTERFLY_DATA)";

inline std::string committed(const std::string& name) {
  return std::string(BUTTERFLY_SOURCE_DIR "/tests/golden/") + name;
}

/// `name` among the committed models, or among others of the same form: tools/compare_random_models.py makes them.
inline std::string model(const std::string& name) {
  const char* root = std::getenv("BUTTERFLY_GOLDEN_MODELS");
  return root != nullptr ? std::string(root) + "/" + name : committed(name);
}

/// The path of `name` in the reference data, where it is there.
inline std::optional<std::string> data(const std::string& name) {
  const char* root = std::getenv("BUTTERFLY_DATA");
  const std::string path = std::string(root != nullptr ? root : BUTTERFLY_SOURCE_DIR "/../shared/data") + "/" + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::vector<float> read_floats(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), values.size() * 4);
  return values;
}

/// Whitespace-separated integers up to the first word that is not a number.
inline std::vector<std::int32_t> read_numbers(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::int32_t> numbers;
  for (std::int32_t number = 0; in >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace butterfly::golden
