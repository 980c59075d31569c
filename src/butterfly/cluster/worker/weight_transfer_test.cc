// Weights and models found by content: what a worker believes and what it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "butterfly/cluster/control/control.pb.h"
#include "butterfly/cluster/control/control_link.h"
#include "butterfly/cluster/membership/fake_stage_test.h"
#include "butterfly/cluster/worker/weight_transfer.h"
#include "butterfly/model/core/random_weights.h"
#include "butterfly/wire/channel/inproc.h"

namespace butterfly {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Digest, AnswersThePublishedValue) {
  // FIPS 180-4's example "abc".
  EXPECT_EQ(to_hex(sha256(as_bytes("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

/// Fetches from a provider through a pair of channels.
Status fetch_all(const WeightProvider& provider, const std::vector<WeightRequest>& wanted, const WeightSink& sink) {
  auto [near, far] = make_inproc_pair();
  std::atomic<std::uint64_t> sent{0};
  std::thread server([&, channel = far.get()] { static_cast<void>(serve_weights(*channel, provider, sent)); });
  LocalModels none("", {});
  RemoteWeightFetcher fetcher(*near, none, {});
  const Status status = fetcher.fetch(wanted, sink);
  near->close();
  server.join();
  return status;
}

const WeightSink kTakeAll = [](const std::string&, NamedBytes) -> Status { return {}; };

TEST(WeightTransfer, AFlippedByteIsRefusedAndBothDigestsNamed) {
  const WeightProvider lying = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    NamedBytes weight = fake_weight(name, 1000);
    weight.digest = sha256(weight.bytes);
    const_cast<std::byte&>(weight.bytes[500]) ^= std::byte{1};
    return weight;
  };
  const Status status = fetch_all(lying, {{.name = "w", .bytes_max = 1000}}, kTakeAll);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kBadData);
  EXPECT_THAT(status.error().message, HasSubstr(to_hex(sha256(fake_weight("w", 1000).bytes))));
}

// Fails when a peer that asks for weights can make us read gigabytes first.
TEST(WeightTransfer, AQuestionThatComesWithAPayloadIsRefused) {
  const auto listener = Listener::create({}).value();
  auto asking = std::async(std::launch::async, [&] { return connect_tcp(listener->address(), {}, after_ms(5000)); });
  const auto arrival = listener->accept(after_ms(5000)).value();
  const auto client = asking.get().value();
  ASSERT_TRUE(client->send({.payload = allocate_payload(1000).value()}, after_ms(5000)));
  std::atomic<std::uint64_t> sent{0};
  const WeightProvider none = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    return fake_weight(name, 10);
  };
  const Status served = serve_weights(*arrival.channel, none, sent);
  EXPECT_EQ(served.error().code, ErrorCode::kProtocol);
}

TEST(WeightTransfer, ThePartThatIsWantedArrivesWhereTheWeightsAre) {
  const WeightPart wanted{.rows = 64, .cols = 1 << 20, .of_rows = {7, 9}, .of_cols = {32, 1 << 19}};
  const WeightProvider provider = [&](const std::string& name, const WeightPart& part) -> Result<NamedBytes> {
    EXPECT_EQ(part, wanted);
    return fake_weight(name, 10);
  };
  EXPECT_TRUE(fetch_all(provider, {{.name = "w", .part = wanted, .bytes_max = 10}}, kTakeAll));
}

TEST(WeightTransfer, ARequestWithoutRowsIsRefusedByWhoHasTheWeights) {
  // What a peer may ask that is no worker of ours.
  auto [near, far] = make_inproc_pair();
  std::atomic<std::uint64_t> sent{0};
  const Checkpoint checkpoint = *random_checkpoint(*named_config("llama-1.1b"), {});
  const WeightProvider provider = [&](const std::string& name, const WeightPart& part) -> Result<NamedBytes> {
    BF_ASSIGN_OR_RETURN(const WeightView view, checkpoint.weights->find_part(name, part));
    return NamedBytes{.rows = view.rows, .cols = view.cols, .bytes = view.bytes, .owner = view.owner};
  };
  std::jthread server([&, channel = far.get()] { static_cast<void>(serve_weights(*channel, provider, sent)); });
  control::WeightMessage message;
  message.mutable_wanted()->set_name("output_norm.weight");
  message.mutable_wanted()->set_rows(1);
  message.mutable_wanted()->set_cols(2048);
  std::vector<std::byte> meta(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(meta.data()));
  ASSERT_TRUE(near->send({.tag = 5, .meta = meta}, after_ms(10'000)));
  const auto answer = near->receive({}, after_ms(10'000));
  near->close();
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->tag, 5u);
  ASSERT_TRUE(message.ParseFromArray(answer->meta.data(), static_cast<int>(answer->meta.size())));
  EXPECT_THAT(message.failure().message(), HasSubstr("output_norm.weight has rows 0 to 1, 0 to 0 were asked for"));
  EXPECT_EQ(sent, 0u);
}

TEST(WeightTransfer, RequestsAreMadeAheadOfTheirUse) {
  // The provider answers the first request only when the second has been asked for.
  std::atomic<int> taken{0};
  int ahead_most = 0;
  std::atomic<int> given{0};
  const WeightProvider provider = [&](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    ++given;
    return fake_weight(name, 10);
  };
  std::vector<WeightRequest> wanted;
  for (int i = 0; i < 20; ++i)
    wanted.push_back({.name = std::string(static_cast<std::size_t>(i), 'x'), .bytes_max = 10});
  const Status status = fetch_all(provider, wanted, [&](const std::string& name, NamedBytes) -> Status {
    EXPECT_EQ(name.size(), static_cast<std::size_t>(taken));
    ++taken;
    for (int i = 0; i < 2000 && given < std::min(20, taken + 2); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ahead_most = std::max(ahead_most, given - taken);
    return {};
  });
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(taken, 20);
  EXPECT_GE(ahead_most, 2);
}

/// A coordinator and some workers that hold the weights, each as it says; who gave how much.
struct Holders {
  explicit Holders(std::vector<WeightProvider> providers) : given(providers.size() + 1) {
    const WeightProvider honest = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
      return fake_weight(name, 1000);
    };
    providers.insert(providers.begin(), honest);
    for (std::size_t i = 0; i < providers.size(); ++i) {
      auto [near, far] = make_inproc_pair();
      nears.push_back(std::move(near));
      servers.emplace_back([this, i, provider = providers[i], channel = std::shared_ptr<Channel>(std::move(far))] {
        static_cast<void>(serve_weights(*channel, provider, given[i]));
        channel->close();
      });
    }
  }
  /// Fetches twice three weights, as a worker does block by block.
  Status fetch() {
    LocalModels none("", {});
    RemoteWeightFetcher::Source source{.connect = [this](const std::string& address) -> Result<ChannelPtr> {
      if (address == "gone") return make_error(ErrorCode::kUnavailable, "nobody is there");
      return std::move(nears[static_cast<std::size_t>(std::stoi(address))]);
    }};
    source.holders = addresses;
    const auto coordinator = std::move(nears[0]);
    RemoteWeightFetcher fetcher(*coordinator, none, source);
    Status status;
    for (const std::string block : {"a", "b"}) {
      std::vector<WeightRequest> wanted;
      for (const char* name : {"1", "22", "333"}) wanted.push_back({.name = block + name, .bytes_max = 1000});
      if (status) {
        status = fetcher.fetch(wanted, [&](const std::string& name, NamedBytes weight) -> Status {
          EXPECT_TRUE(std::ranges::equal(weight.bytes, fake_weight(name, 1000).bytes)) << name;
          EXPECT_EQ(weight.type, 3u);
          names.push_back(name);
          return {};
        });
      }
    }
    coordinator->close();
    return status;
  }
  std::vector<std::string> addresses, names;
  std::vector<ChannelPtr> nears;
  std::vector<std::atomic<std::uint64_t>> given;  // the coordinator first
  std::vector<std::jthread> servers;
};

const WeightProvider kHonest = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
  return fake_weight(name, 1000);
};
const std::vector<std::string> kInOrder{"a1", "a22", "a333", "b1", "b22", "b333"};

TEST(WeightHolders, BytesComeFromTheHolderAndDigestsFromTheCoordinator) {
  Holders holders({kHonest});
  holders.addresses = {"gone", "1"};
  const Status status = holders.fetch();
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(holders.names, kInOrder);
  EXPECT_EQ(holders.given[0], 0u);
  EXPECT_EQ(holders.given[1], 6000u);
}

// Fails when a holder is believed that gives other bytes with a digest that fits them, or another shape.
TEST(WeightHolders, ALiarIsReplacedByTheNextAndThenByTheCoordinator) {
  const WeightProvider lying = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    NamedBytes weight = fake_weight(name, 1000);
    weight.type = 4;
    if (name == "a333") const_cast<std::byte&>(weight.bytes[500]) ^= std::byte{1};
    return weight;
  };
  const WeightProvider failing = [](const std::string& name, const WeightPart&) -> Result<NamedBytes> {
    if (name == "b22") return make_error(ErrorCode::kIo, "the file is gone");
    return fake_weight(name, 1000);
  };
  Holders holders({lying, failing});
  holders.addresses = {"1", "2"};
  const Status status = holders.fetch();
  EXPECT_TRUE(status) << status.error().message;
  EXPECT_EQ(holders.names, kInOrder);
  EXPECT_EQ(holders.given[0], 2000u) << "b22 and b333";
}

TEST(WeightTransfer, AnErrorOfTheSinkEndsTheFetch) {
  int taken = 0;
  const Status status =
      fetch_all([](const std::string& name, const WeightPart&) -> Result<NamedBytes> { return fake_weight(name, 10); },
                {{.name = "a", .bytes_max = 10}, {.name = "b", .bytes_max = 10}},
                [&](const std::string&, NamedBytes) -> Status {
                  ++taken;
                  return make_error(ErrorCode::kBadData, "not my shape");
                });
  EXPECT_EQ(status.error().message, "not my shape");
  EXPECT_EQ(taken, 1);
}

TEST(WeightTransfer, AWeightLargerThanExpectedIsRefusedBeforeItIsRead) {
  ThreadWorker worker;  // over tcp, where a buffer would have to be allocated
  worker.stage.wanted = {{.name = "w", .bytes_max = 999}};
  const auto session = connect_cluster({worker.address()}, after_ms(10'000)).value();
  const auto ends = session->start(fake_request(1), after_ms(10'000));
  ASSERT_FALSE(ends);
  EXPECT_EQ(ends.error().code, ErrorCode::kProtocol);
  EXPECT_THAT(ends.error().message, HasSubstr("at most 999 B"));
}

class LocalModelsTest : public ::testing::Test {
 protected:
  LocalModelsTest() : directory_(fs::temp_directory_path() / fmt::format("butterfly-models-{}", ::getpid())) {
    fs::create_directories(directory_ / "deep" / "er");
  }
  ~LocalModelsTest() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ContentFunctions content() {
    return {.bytes = [](const std::string& path) -> Result<std::uint64_t> { return text_of(path).size(); },
            .hash = [this](const std::string& path) -> Result<std::string> {
              ++hashed_;
              return to_hex(sha256(as_bytes(text_of(path))));
            }};
  }

  fs::path directory_;
  int hashed_ = 0;
};

TEST_F(LocalModelsTest, AFileIsFoundByItsContentWhateverItsName) {
  write("a.gguf", "abd");
  write("deep/er/renamed", "abc");
  write("long.gguf", "abcabc");
  LocalModels models(directory_, content());
  const auto found = models.find(to_hex(sha256(as_bytes("abc"))), 3);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->value_or(""), (directory_ / "deep/er/renamed").string());
  EXPECT_EQ(hashed_, 2) << "the longer file cannot be it";
  EXPECT_TRUE(models.find(to_hex(sha256(as_bytes("abc"))), 3).value());
  EXPECT_EQ(hashed_, 2) << "unchanged files are not read again";
  EXPECT_FALSE(models.find(to_hex(sha256(as_bytes("xyz"))), 3).value());
}

TEST_F(LocalModelsTest, AHashThatIsAPathFindsNothing) {
  write("a.gguf", "abc");
  LocalModels models(directory_ / "deep", content());
  EXPECT_FALSE(models.find("../a.gguf", 3).value());
  EXPECT_FALSE(models.find((directory_ / "a.gguf").string(), 3).value());
  EXPECT_FALSE(models.find("", 3).value());
}

TEST_F(LocalModelsTest, AChangedFileIsHashedAgain) {
  write("a.gguf", "abc");
  LocalModels models(directory_, content());
  ASSERT_TRUE(models.find(to_hex(sha256(as_bytes("abc"))), 3).value());
  write("a.gguf", "xyz");
  fs::last_write_time(directory_ / "a.gguf", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_FALSE(models.find(to_hex(sha256(as_bytes("abc"))), 3).value());
  EXPECT_TRUE(models.find(to_hex(sha256(as_bytes("xyz"))), 3).value());
}

TEST_F(LocalModelsTest, AChangedFileIsHashedAgainThoughItsSizeAndTimeWereSetBack) {
  write("a.gguf", "abc");
  const auto time = fs::last_write_time(directory_ / "a.gguf");
  LocalModels models(directory_, content());
  const std::string path = models.find(to_hex(sha256(as_bytes("abc"))), 3).value().value();
  EXPECT_TRUE(models.check(path));
  for (const char* how : {"written to", "replaced"}) {
    if (how == std::string("replaced")) fs::remove(directory_ / "a.gguf");
    // The clock of inodes moves in steps of some milliseconds.
    const auto stands = [&] { return models.check(path).has_value(); };
    do {
      write("a.gguf", "xyz");
      fs::last_write_time(directory_ / "a.gguf", time);
    } while (stands());
    EXPECT_FALSE(models.find(to_hex(sha256(as_bytes("abc"))), 3).value()) << how;
    EXPECT_TRUE(models.find(to_hex(sha256(as_bytes("xyz"))), 3).value()) << how;
    EXPECT_TRUE(models.check(path));
  }
}

TEST_F(LocalModelsTest, AWorkerOffersItsOwnFileToItsDelegate) {
  write("a.gguf", "abc");
  WorkerOptions options;
  options.model_directory = directory_;
  options.content = content();
  ThreadWorker worker(options);
  const auto session = connect_cluster({worker.address()}, after_ms(10'000)).value();
  StartRequest request = fake_request(1);
  request.model = {.hash = to_hex(sha256(as_bytes("abc"))), .bytes = 3, .name = "a"};
  ASSERT_TRUE(session->start(request, after_ms(10'000)));
  EXPECT_EQ(worker.stage.local_path.value_or(""), (directory_ / "a.gguf").string());
}

TEST(LocalModels, AMissingDirectoryIsAnError) {
  LocalModels models("/nonexistent/models", {.bytes = [](const std::string&) -> Result<std::uint64_t> { return 0; },
                                             .hash = [](const std::string&) -> Result<std::string> { return ""; }});
  EXPECT_EQ(models.find("ab", 1).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace butterfly
