#include "butterfly/train/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "butterfly/train/data/hash_of_pieces_test.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;

std::string token_path(const std::string& name) {
  return ::testing::TempDir() + "token_file_" + name;
}

std::vector<TokenId> ids(const std::vector<int>& values) {
  std::vector<TokenId> result;
  for (int value : values) result.emplace_back(value);
  return result;
}

std::string written(const std::string& name, int vocab, const std::vector<TokenId>& tokens) {
  const std::string path = token_path(name);
  auto writer = TokenFileWriter::create(path, vocab, hash_of_pieces({"a", "b"}));
  EXPECT_TRUE(writer && writer->append(tokens) && writer->finish());
  return path;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string file_refusal(const std::string& bytes) {
  const auto file = TokenFile::parse(as_bytes(bytes), "x.tokens");
  if (file) return "accepted";
  EXPECT_EQ(file.error().code, ErrorCode::kBadData);
  return file.error().message;
}

TEST(TokenFile, GivesBackTheIdsInTwoBytesOrFour) {
  for (const int vocab : {1 << 16, (1 << 16) + 1}) {
    const std::vector<TokenId> tokens = ids({0, 1, 65535, vocab - 1, 258});
    const std::string path = written("ids.tokens", vocab, tokens);
    EXPECT_EQ(std::filesystem::file_size(path), 64u + 5u * (vocab == 1 << 16 ? 2u : 4u));
    const auto file = TokenFile::open(path);
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->vocab(), vocab);
    EXPECT_EQ(file->hash(), hash_of_pieces({"a", "b"}));
    ASSERT_EQ(file->tokens().size(), 5);
    std::vector<TokenId> read(5), part(2);
    file->tokens().copy(0, read);
    file->tokens().part(1, 4).copy(1, part);
    EXPECT_EQ(read, tokens);
    EXPECT_EQ(part, ids({65535, vocab - 1}));
  }
}

TEST(TokenFile, HashesWhatIdsMean) {
  EXPECT_NE(hash_of_pieces({"a", "b"}), hash_of_pieces({"b", "a"}));
  EXPECT_NE(hash_of_pieces({"ab", "c"}), hash_of_pieces({"a", "bc"}));
}

TEST(TokenFile, HostileHeadersAreRefusedWithBothValues) {
  const std::string good = bytes_of(written("good.tokens", 300, ids({1, 2, 3})));
  ASSERT_EQ(file_refusal(good), "accepted");
  const auto with = [&](std::size_t offset, std::uint64_t value, std::size_t size) {
    std::string bad = good;
    return bad.replace(offset, size, reinterpret_cast<const char*>(&value), size);
  };
  EXPECT_THAT(file_refusal(""), HasSubstr("has 0 bytes, the header of a token file has 64"));
  EXPECT_THAT(file_refusal(good.substr(0, 63)), HasSubstr("has 63 bytes"));
  EXPECT_THAT(file_refusal(with(0, 'X', 1)), HasSubstr("is no token file"));
  EXPECT_THAT(file_refusal(with(8, 2, 4)), HasSubstr("is version 2 of token files, this program reads 1"));
  EXPECT_THAT(file_refusal(with(12, 4, 4)), HasSubstr("an id has 4 bytes, a vocabulary of 300 tokens needs 2"));
  EXPECT_THAT(file_refusal(with(16, 0, 4)), HasSubstr("the vocabulary has 0 tokens"));
  EXPECT_THAT(file_refusal(with(16, 0xFFFFFFFF, 4)), HasSubstr("the vocabulary has 4294967295 tokens"));
  EXPECT_THAT(file_refusal(with(24, 4, 8)), HasSubstr("the header says 4 tokens of 2 bytes, 6 bytes follow it"));
  EXPECT_THAT(file_refusal(with(24, (std::uint64_t{1} << 63) + 3, 8)), HasSubstr("6 bytes follow it"));
  EXPECT_THAT(file_refusal(good + "x"), HasSubstr("7 bytes follow it"));
  EXPECT_THAT(file_refusal(with(24, 0, 8).substr(0, 64)), HasSubstr("the header says 0 tokens"));
}

/// Files of the test's folder whose names begin so.
int files_like(const std::string& name) {
  const std::filesystem::path path = token_path(name);
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path())) {
    count += entry.path().filename().string().starts_with(path.filename().string()) ? 1 : 0;
  }
  return count;
}

TEST(TokenFile, AWriterTouchesNeitherWhatALinkNamesNorADevice) {
  const std::string precious = token_path("precious.txt"), path = token_path("linked.tokens");
  std::ofstream(precious) << "precious";
  std::filesystem::remove(path + ".partial");
  std::filesystem::create_symlink(precious, path + ".partial");
  auto writer = TokenFileWriter::create(path, 10, {});
  ASSERT_TRUE(writer && writer->append(ids({1, 2})) && writer->finish());
  EXPECT_EQ(bytes_of(precious), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  EXPECT_TRUE(TokenFile::open(path));
  std::filesystem::remove(path + ".partial");
  const auto device = TokenFileWriter::create("/dev/full", 10, {});
  ASSERT_FALSE(device);
  EXPECT_THAT(device.error().message, HasSubstr("/dev/full: exists and is no regular file"));
}

TEST(TokenFile, AnUnfinishedOrFailedWriteLeavesTheOldFile) {
  const std::string path = written("kept.tokens", 10, ids({1, 2, 3}));
  const std::string before = bytes_of(path);
  {
    auto writer = TokenFileWriter::create(path, 10, {});
    ASSERT_TRUE(writer);
    EXPECT_TRUE(writer->append(ids({4})));
    const Status outside = writer->append(ids({10}));
    ASSERT_FALSE(outside);
    EXPECT_THAT(outside.error().message, HasSubstr("token 10 is outside the vocabulary of 10"));
  }
  EXPECT_EQ(bytes_of(path), before);
  EXPECT_EQ(files_like("kept.tokens"), 1);
  auto empty = TokenFileWriter::create(path, 10, {});
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->finish().error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace butterfly
