#include "butterfly/wire/channel/frame.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace butterfly {
namespace {

std::vector<std::byte> frame_bytes(FrameHeader header, ByteSpan body) {
  header.body_checksum = crc32c(body);
  const FrameHeaderBytes encoded = encode_frame_header(header);
  std::vector<std::byte> bytes(encoded.size() + body.size());
  std::ranges::copy(encoded, bytes.begin());
  std::ranges::copy(body, bytes.begin() + kFrameHeaderBytes);
  return bytes;
}

/// Feeds `bytes` in pieces of at most `piece` and collects what comes out.
Result<std::vector<Message>> feed(FrameReader& reader, ByteSpan bytes, std::size_t piece,
                                  const PayloadAllocator& allocator = {}) {
  std::vector<Message> messages;
  while (!bytes.empty()) {
    std::size_t moved = 0;
    for (const MutableByteSpan buffer : reader.wanted()) {
      const std::size_t count = std::min({buffer.size(), bytes.size(), piece - moved});
      if (count > 0) std::memcpy(buffer.data(), bytes.data(), count);
      bytes = bytes.subspan(count);
      moved += count;
    }
    BF_ASSIGN_OR_RETURN(auto message, reader.advance(moved, allocator));
    if (message) messages.push_back(std::move(*message));
  }
  return messages;
}

/// A packed payload that says it becomes `size` bytes, with `compressed` bytes that no codec wrote.
std::vector<std::byte> packed_bytes(std::uint64_t size, std::size_t compressed) {
  std::vector<std::byte> bytes(kPackedHeadBytes + compressed);
  std::memcpy(bytes.data(), &size, kPackedHeadBytes);
  return bytes;
}

TEST(Frame, Crc32cAnswersThePublishedCheckValue) {
  EXPECT_EQ(crc32c(as_bytes("123456789")), 0xe3069283u);  // the check value of CRC-32C, RFC 3720 B.4's parameters
}

TEST(Frame, Crc32cIsTheSameWithAndWithoutTheInstructionAndInParts) {
  std::string text;
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(crc32c(as_bytes(text)), crc32c_portable(as_bytes(text))) << i;
    const auto [a, b] = std::pair(text.substr(0, text.size() / 3), text.substr(text.size() / 3));
    EXPECT_EQ(crc32c(as_bytes(b), crc32c(as_bytes(a))), crc32c(as_bytes(text))) << i;
    text += static_cast<char>(i * 37);
  }
  for (const std::size_t size : {3071u, 3072u, 3073u, 6143u, 6144u, 10'000u}) {  // about those taken in three runs
    for (std::size_t i = text.size(); i < size; ++i) text += static_cast<char>(i * i >> 3);
    EXPECT_EQ(crc32c(as_bytes(text), 7), crc32c_portable(as_bytes(text), 7)) << size;
  }
}

TEST(Frame, HeaderLaysEveryFieldAtItsDocumentedPlace) {
  const FrameHeaderBytes bytes = encode_frame_header(
      {.type = 0x0201, .epoch = Epoch(0x0a090807), .tag = 0x1716151413121110, .meta_bytes = 0x0f, .payload_bytes = 3});
  const auto at = [&](std::size_t i) { return std::to_integer<int>(bytes[i]); };
  EXPECT_EQ(as_text(ByteSpan(bytes).first(4)), "BFRM");
  EXPECT_EQ(at(4), 0x01);
  EXPECT_EQ(at(5), 0x02);
  EXPECT_EQ(at(8), 0x07);
  EXPECT_EQ(at(12), 0x0f);
  EXPECT_EQ(at(16), 0x10);
  EXPECT_EQ(at(23), 0x17);
  EXPECT_EQ(at(24), 3);
}

TEST(Frame, AnySplittingOfTheStreamGivesTheSameMessages) {
  std::vector<std::byte> stream;
  for (std::uint32_t i = 0; i < 5; ++i) {
    const std::string body(i * 7 + i, static_cast<char>('a' + i));
    const auto one =
        frame_bytes({.type = 3, .epoch = Epoch(i), .tag = i, .meta_bytes = i, .payload_bytes = i * 7}, as_bytes(body));
    stream.insert(stream.end(), one.begin(), one.end());
  }
  for (const std::size_t piece : {std::size_t{1}, std::size_t{2}, std::size_t{39}, std::size_t{40}, stream.size()}) {
    FrameReader reader{ChannelLimits{}};
    const auto messages = feed(reader, stream, piece);
    ASSERT_TRUE(messages) << messages.error().message;
    ASSERT_EQ(messages->size(), 5u);
    for (std::uint32_t i = 0; i < 5; ++i) {
      EXPECT_EQ((*messages)[i].tag, i);
      EXPECT_EQ((*messages)[i].epoch, Epoch(i));
      EXPECT_EQ((*messages)[i].meta, std::vector<std::byte>(i, static_cast<std::byte>('a' + i)));
      EXPECT_EQ(as_text((*messages)[i].payload.bytes), std::string(i * 7, static_cast<char>('a' + i)));
    }
    EXPECT_FALSE(reader.in_message());
  }
}

TEST(Frame, EverySingleFlippedBitOfAHeaderIsNoticed) {
  const FrameHeaderBytes good = encode_frame_header({.type = 7, .epoch = Epoch(1), .tag = 9, .meta_bytes = 4});
  ASSERT_TRUE(decode_frame_header(good, ChannelLimits{}));
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    FrameHeaderBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto decoded = decode_frame_header(bad, ChannelLimits{});
    ASSERT_FALSE(decoded) << "bit " << bit;
    EXPECT_EQ(decoded.error().code, ErrorCode::kProtocol);
  }
}

TEST(Frame, AFlippedBitOfABodyIsNoticedBeforeTheMessageIsDelivered) {
  const std::string body = "meta and payload";
  const auto good = frame_bytes({.meta_bytes = 5, .payload_bytes = body.size() - 5}, as_bytes(body));
  for (std::size_t byte = kFrameHeaderBytes; byte < good.size(); ++byte) {
    auto bad = good;
    bad[byte] ^= std::byte{0x10};
    FrameReader reader{ChannelLimits{}};
    const auto messages = feed(reader, bad, bad.size());
    ASSERT_FALSE(messages) << "byte " << byte;
    EXPECT_EQ(messages.error().code, ErrorCode::kProtocol);
  }
}

TEST(Frame, SizesOverTheLimitsAreRefusedBeforeAnythingIsAllocated) {
  const ChannelLimits limits{.meta_bytes_max = 100, .payload_bytes_max = 1000};
  int allocations = 0;
  const PayloadAllocator counting = [&](std::uint64_t bytes) {
    ++allocations;
    return allocate_payload(bytes);
  };
  for (const FrameHeader& header :
       {FrameHeader{.meta_bytes = 101, .payload_bytes = 10}, FrameHeader{.meta_bytes = 1, .payload_bytes = 1001},
        FrameHeader{.meta_bytes = ~0u, .payload_bytes = ~0ull}}) {
    FrameReader reader(limits);
    const auto result = feed(reader, frame_bytes(header, {}), kFrameHeaderBytes, counting);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kProtocol);
  }
  EXPECT_EQ(allocations, 0);
  FrameReader reader(limits);
  const auto fits =
      feed(reader, frame_bytes({.meta_bytes = 100, .payload_bytes = 1000}, {}), kFrameHeaderBytes, counting);
  EXPECT_TRUE(fits);
  EXPECT_EQ(allocations, 1);
}

TEST(Frame, UnknownFlagsAreRefused) {
  for (std::uint32_t flags = 0; flags <= 0xffff; ++flags) {
    FrameHeaderBytes bytes = encode_frame_header({});
    bytes[6] = static_cast<std::byte>(flags & 0xff);
    bytes[7] = static_cast<std::byte>(flags >> 8);
    const std::uint32_t checksum = crc32c(ByteSpan(bytes).first(36));
    std::memcpy(bytes.data() + 36, &checksum, sizeof(checksum));
    const std::uint32_t codec = flags & 0xf, element = flags >> 4;
    const bool known = flags == 0 || (codec >= 1 && codec <= 2 && element <= 2);
    EXPECT_EQ(decode_frame_header(bytes, ChannelLimits{}).has_value(), known) << flags;
  }
}

TEST(Frame, APackedPayloadIsUnpackedIntoTheAllocatorsBufferFromPiecesOfAnySize) {
  std::vector<std::byte> payload(20'000);
  for (std::size_t i = 0; i < payload.size(); ++i)
    payload[i] = static_cast<std::byte>(i % 4 == 3 ? 0x3f : i * 2654435761u >> 13);
  for (const Codec codec : kCodecs) {
    const Packing packing{codec, 4};
    const auto packed = PayloadCodec().pack(payload, packing);
    ASSERT_TRUE(packed);
    const auto stream = frame_bytes({.payload_bytes = packed->bytes.size(), .packing = packing}, packed->bytes);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{4097}, stream.size()}) {
      const Payload buffer = allocate_payload(payload.size()).value();
      FrameReader reader{ChannelLimits{.payload_bytes_max = payload.size()}};
      const auto messages = feed(reader, stream, piece, [&](std::uint64_t) -> Result<Payload> { return buffer; });
      ASSERT_TRUE(messages) << messages.error().message;
      EXPECT_EQ(messages->front().payload.bytes.data(), buffer.bytes.data());
      EXPECT_TRUE(std::ranges::equal(messages->front().payload.bytes, payload));
      EXPECT_EQ(reader.bytes_saved(), payload.size() - packed->bytes.size());
    }
    FrameReader strict{ChannelLimits{.payload_bytes_max = payload.size() - 1}};
    EXPECT_EQ(feed(strict, stream, stream.size()).error().code, ErrorCode::kProtocol)
        << "the limit is for what it becomes, too";
  }
}

TEST(Frame, APackedPayloadIsRefusedWhereTheConnectionTakesNone) {
  const std::vector<std::byte> payload(20'000, std::byte{1});
  const auto packed = packed_bytes(payload.size(), 2000);
  const auto stream = frame_bytes({.payload_bytes = packed.size(), .packing = {Codec::kLz4, 1}}, packed);
  FrameReader reader(ChannelLimits{}, PackedPayloads::kRefused);
  const auto refused = feed(reader, ByteSpan(stream).first(kFrameHeaderBytes), kFrameHeaderBytes);
  ASSERT_FALSE(refused) << "by its header alone";
  EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
}

TEST(Frame, TheAllocatorHearsWhatAPackedPayloadBecomesBeforeItIsRead) {
  constexpr std::uint64_t kBecomes = 32'000'000;
  const auto packed = packed_bytes(kBecomes, 1 << 20);
  const auto stream = frame_bytes({.payload_bytes = packed.size(), .packing = {Codec::kZstd, 4}}, packed);
  std::uint64_t asked = 0;
  const PayloadAllocator refusing = [&](std::uint64_t bytes) -> Result<Payload> {
    asked = bytes;
    return make_error(ErrorCode::kNoMemory, "too much");
  };
  FrameReader reader{ChannelLimits{}};
  const auto head = ByteSpan(stream).first(kFrameHeaderBytes + kPackedHeadBytes);
  const auto refused = feed(reader, head, head.size(), refusing);
  ASSERT_FALSE(refused) << "as soon as the size is there";
  EXPECT_EQ(refused.error().message, "too much");
  EXPECT_EQ(asked, kBecomes);
}

TEST(Frame, APackedPayloadThatSaysAnImpossibleSizeIsRefusedBeforeItIsRead) {
  constexpr std::size_t kPacked = 10'000;
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{kPacked}, std::uint64_t{kExpansionMax * kPacked * 2}, ~std::uint64_t{0}}) {
    const auto packed = packed_bytes(size, kPacked);
    const auto stream = frame_bytes({.payload_bytes = packed.size(), .packing = {Codec::kLz4, 1}}, packed);
    FrameReader reader{ChannelLimits{.payload_bytes_max = ~0ull}};
    int asked = 0;
    const auto refused = feed(reader, ByteSpan(stream).first(kFrameHeaderBytes + kPackedHeadBytes), stream.size(),
                              [&](std::uint64_t bytes) {
                                ++asked;
                                return allocate_payload(bytes);
                              });
    ASSERT_FALSE(refused) << size;
    EXPECT_EQ(refused.error().code, ErrorCode::kProtocol);
    EXPECT_EQ(asked, 0);
  }
}

TEST(Frame, APackedPayloadWithMetaUnpacksFromSingleBytes) {
  std::vector<std::byte> payload(9'000);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i / 40);
  const Packing packing{Codec::kZstd, 1};
  const auto packed = PayloadCodec().pack(payload, packing);
  ASSERT_TRUE(packed);
  std::vector<std::byte> body(7, std::byte{9});
  body.insert(body.end(), packed->bytes.begin(), packed->bytes.end());
  const auto once = frame_bytes({.meta_bytes = 7, .payload_bytes = packed->bytes.size(), .packing = packing}, body);
  std::vector<std::byte> twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  FrameReader reader{ChannelLimits{}};
  const auto messages = feed(reader, twice, 1);
  ASSERT_TRUE(messages) << messages.error().message;
  ASSERT_EQ(messages->size(), 2u);
  for (const Message& message : *messages) {
    EXPECT_EQ(message.meta, std::vector<std::byte>(7, std::byte{9}));
    EXPECT_TRUE(std::ranges::equal(message.payload.bytes, payload));
  }
}

TEST(Hello, RoundTripsItsFields) {
  const Introduction said{.role = ConnectionRole::kControl, .session = make_session_id(), .label = "input"};
  const auto heard = decode_hello(encode_hello(said));
  ASSERT_TRUE(heard) << heard.error().message;
  EXPECT_EQ(heard->role, said.role);
  EXPECT_EQ(heard->session, said.session);
  EXPECT_EQ(heard->label, said.label);
}

TEST(Hello, ImpossibleFieldsAreRefused) {
  const HelloBytes good = encode_hello({.role = ConnectionRole::kData, .session = {}, .label = "x"});
  for (const auto& [offset, value] : {std::pair{0, 1}, {10, 95}, {12, 0}, {12, 6}, {13, 65}, {13, 255}}) {
    HelloBytes bad = good;
    bad[static_cast<std::size_t>(offset)] = static_cast<std::byte>(value);
    EXPECT_FALSE(decode_hello(bad)) << offset << " " << value;
  }
}

TEST(Hello, EverySingleFlippedBitOfItOrOfItsAnswerIsNoticedByTheClient) {
  const HelloBytes said = encode_hello({.role = ConnectionRole::kControl, .session = make_session_id(), .label = "x"});
  const HelloReplyBytes answer = encode_hello_reply(kProtocolVersion, said);
  EXPECT_FALSE(was_damaged(said, answer));
  for (std::size_t bit = 0; bit < 8 * kHelloBytes; ++bit) {
    HelloBytes heard = said;
    heard[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(was_damaged(said, encode_hello_reply(kProtocolVersion, heard))) << bit;
    const auto prefix = std::span(heard).first<kHelloPrefixBytes>();
    EXPECT_TRUE(decode_hello_version(prefix) || resembles_hello(prefix)) << "and is answered: " << bit;
  }
  for (std::size_t bit = 0; bit < 8 * (kHelloReplyBytes - 2); ++bit) {
    HelloReplyBytes bad = answer;
    bad[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(was_damaged(said, bad)) << bit;
  }
}

TEST(Hello, StrangersAreNotTakenForDamagedHellos) {
  HelloBytes tls{};
  std::ranges::copy(as_bytes(std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)), tls.begin());
  EXPECT_FALSE(resembles_hello(std::span(tls).first<kHelloPrefixBytes>()));
  HelloReplyBytes http{};
  std::ranges::copy(as_bytes(std::string_view("HTTP/1.1 400 Bad")), http.begin());
  EXPECT_FALSE(was_damaged(encode_hello({}), http));
  EXPECT_FALSE(was_damaged(encode_hello({}), encode_hello_reply(kProtocolVersion + 1))) << "another version's";
}

TEST(Hello, SessionIdsDiffer) {
  EXPECT_NE(make_session_id(), make_session_id());
}

}  // namespace
}  // namespace butterfly
