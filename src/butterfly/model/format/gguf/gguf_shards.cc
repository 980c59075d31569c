#include "butterfly/model/format/gguf/gguf_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace butterfly {
namespace {

constexpr std::string_view kFirst = "-00001-of-";
constexpr std::string_view kEnd = ".gguf";
constexpr std::size_t kDigits = 5;

struct Split {
  std::int64_t number = 0;  // from 0
  std::int64_t count = 1;
};

Result<Split> split_of(const GgufFile& file) {
  Split split;
  BF_ASSIGN_OR_RETURN(const auto number, file.get_int("split.no"));
  BF_ASSIGN_OR_RETURN(const auto count, file.get_int("split.count"));
  split.number = number.value_or(0);
  split.count = std::max<std::int64_t>(count.value_or(1), 1);
  return split;
}

}  // namespace

std::vector<std::string> gguf_shards(const std::string& path) {
  const std::size_t tail = kFirst.size() + kDigits + kEnd.size();
  if (path.size() <= tail) return {path};
  const std::string stem = path.substr(0, path.size() - tail);
  const std::string digits = path.substr(stem.size() + kFirst.size(), kDigits);
  const bool numbers = std::ranges::all_of(digits, [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!path.ends_with(kEnd) || path.compare(stem.size(), kFirst.size(), kFirst) != 0 || !numbers) return {path};
  std::vector<std::string> paths;
  const int count = std::max(std::stoi(digits), 1);
  for (int i = 1; i <= count; ++i) paths.push_back(fmt::format("{}-{:05}-of-{}{}", stem, i, digits, kEnd));
  return paths;
}

Result<std::vector<std::shared_ptr<const MappedFile>>> add_gguf_shards(const std::string& path, GgufFile& first) {
  std::vector<std::shared_ptr<const MappedFile>> mappings;
  BF_ASSIGN_OR_RETURN(const Split split, split_of(first));
  if (split.count == 1) return mappings;
  if (split.number != 0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: is part {} of {} of a model, open its first part", path,
                      split.number + 1, split.count);
  }
  const std::vector<std::string> paths = gguf_shards(path);
  if (static_cast<std::int64_t>(paths.size()) != split.count) {
    return make_error(ErrorCode::kBadData, "{}: has {} parts, its name says {}; expected NAME-00001-of-{:05}.gguf",
                      path, split.count, paths.size(), split.count);
  }
  for (std::size_t i = 1; i < paths.size(); ++i) {
    BF_ASSIGN_OR_RETURN(auto mapping, MappedFile::open(paths[i]));
    BF_ASSIGN_OR_RETURN(GgufFile file, GgufFile::parse(mapping->bytes(), paths[i]));
    BF_ASSIGN_OR_RETURN(const Split own, split_of(file));
    if (own.number != static_cast<std::int64_t>(i) || own.count != split.count) {
      return make_error(ErrorCode::kBadData, "{}: says that it is part {} of {}, its name part {} of {}", paths[i],
                        own.number + 1, own.count, i + 1, split.count);
    }
    BF_TRY(first.add_tensors(file));
    mappings.push_back(std::move(mapping));
  }
  BF_ASSIGN_OR_RETURN(const auto tensors, first.get_int("split.tensors.count"));
  const auto found = static_cast<std::int64_t>(first.tensors().size());
  if (tensors.value_or(found) != found) {
    return make_error(ErrorCode::kBadData, "{}: has {} tensors in {} parts, split.tensors.count is {}", path, found,
                      split.count, *tensors);
  }
  return mappings;
}

}  // namespace butterfly
