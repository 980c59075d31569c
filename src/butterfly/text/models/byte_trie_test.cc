#include "butterfly/text/models/byte_trie.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace butterfly {
namespace {

/// Each of `values` is found, and nothing else: of strings that begin like one, `longest` is the longest.
void expect_holds(const std::map<std::string, std::int32_t>& values, const std::vector<std::string>& asked) {
  std::vector<std::pair<std::string_view, std::int32_t>> entries(values.begin(), values.end());
  const ByteTrie trie(std::move(entries));
  for (const std::string& text : asked) {
    ByteTrie::Match expected;
    for (std::size_t size = 1; size <= text.size(); ++size) {
      const auto value = values.find(text.substr(0, size));
      if (value != values.end()) expected = {size, value->second};
    }
    const ByteTrie::Match match = trie.longest(text);
    ASSERT_EQ(match.size, expected.size) << testing::PrintToString(text);
    ASSERT_EQ(match.value, expected.value);
  }
}

TEST(ByteTrie, HoldsWhatItWasGivenAndNothingElse) {
  std::mt19937 random(1);
  // Few letters make deep nodes, all bytes wide ones, zero and 255 among them.
  for (const std::uint32_t letters : {2u, 5u, 256u}) {
    const auto text = [&](std::size_t longest) {
      std::string result(1 + random() % longest, '\0');
      for (char& byte : result) byte = static_cast<char>(255 - random() % letters);
      return result;
    };
    std::map<std::string, std::int32_t> values;
    std::vector<std::string> asked;
    for (std::int32_t i = 0; i < 5000; ++i) values.emplace(text(7), i);
    for (const auto& [key, value] : values) asked.push_back(key + text(3));
    for (int i = 0; i < 20000; ++i) asked.push_back(text(9));
    expect_holds(values, asked);
  }
}

TEST(ByteTrie, NodesWithAllBytesAsChildrenFillBlocks) {
  std::map<std::string, std::int32_t> values;
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      values[{static_cast<char>(first), static_cast<char>(second)}] = first * 256 + second;
    }
  }
  std::vector<std::string> asked{"", "a", std::string(1, '\0')};
  for (const auto& [key, value] : values) asked.push_back(key + "x");
  expect_holds(values, asked);
}

TEST(ByteTrie, AnEmptyTrieLeadsNowhere) {
  const ByteTrie trie;
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(trie.child(ByteTrie::kRoot, static_cast<char>(byte)), ByteTrie::kNone);
}

TEST(ByteTrie, OfEqualStringsTheFirstStands) {
  const ByteTrie trie({{"ab", 3}, {"", 9}, {"ab", 1}});
  EXPECT_EQ(trie.longest("abc").value, 3);
  EXPECT_EQ(trie.longest("").value, -1);
}

}  // namespace
}  // namespace butterfly
