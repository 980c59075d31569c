// A model that continues texts: on this machine's threads, over several nodes in this process, or over workers. The
// text depends on the model, the prompt and the text options alone, never on where the layers are.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "butterfly/base/result.h"
#include "butterfly/load_balancer.h"
#include "butterfly/node_registry.h"
#include "butterfly/partition.h"

namespace butterfly {

/// What happens to a generator's nodes.
struct GeneratorEvent {
  enum class Kind : std::uint8_t {
    kJoined,   // a node can be given work; the first ones, too
    kLost,     // a node is gone, or leaves
    kEpoch,    // work goes on over the nodes that there are: the first time, and after each change
    kWaiting,  // too few nodes are left, and the text waits for one
  };
  Kind kind = Kind::kEpoch;
  std::string node{};       // id; of kJoined and kLost
  std::string message{};    // why, one sentence; may be empty
  std::uint32_t epoch = 0;  // of kEpoch, from 1
  int workers = 0;          // of kEpoch: how many work
};
const char* to_string(GeneratorEvent::Kind kind);  // "joined", "lost", "epoch", "waiting"

struct GeneratorOptions {
  int threads = 0;             // of each node in this process; 0: all that it may use, shared by the nodes
  int nodes = 1;               // in this process, where there are no workers
  std::string packed_cache{};  // folder for packed weights of nodes in this process, which the next start maps; empty:
                               // none. Its files may be deleted at any time

  std::vector<std::string> workers{};  // "host:port" of each; they run all layers
  std::string join_at{};               // "host:port" where further workers may join at any time; empty: nowhere
  std::string credentials{};           // folder of this node's certificate; empty: $BUTTERFLY_HOME, else
                                       // ~/.config/butterfly, where there is one. With credentials: the members of
                                       // the cluster alone, encrypted, at any address; without: loopback alone
  bool any_address = false;            // any address without authentication or encryption; not beside credentials

  std::string split = "uniform";     // any of PartitionManager::strategies(), or "custom"
  std::string goal = "latency";      // what splits that search look for; or "throughput", "memory"
  std::vector<LayerShare> custom{};  // what the split "custom" follows; nodes by address, or "node 0", "node 1", ...
  bool measure_links = false;        // first, a tenth of a second each; splits that look at links do so anyway

  int replicas = 1;  // of the model, each over its part of the workers (or of the nodes times this): that many texts
                     // are generated at once, and one that loses its nodes for good goes on at another replica
  BalancePolicy policy = BalancePolicy::kLeastLoaded;  // which replica gets the next text

  std::chrono::milliseconds ready_timeout{600'000};    // for all workers to have their weights
  std::chrono::milliseconds step_timeout{600'000};     // for one step; a worker that takes longer is done without
  std::chrono::milliseconds heartbeat{200};            // between two questions whether a worker lives
  std::chrono::milliseconds dead_after{1500};          // a worker that is silent for so long is dead
  std::chrono::milliseconds recover_within{60'000};    // for workers to come back or join where too few are left
  std::function<void(const GeneratorEvent&)> event{};  // called from the generator's threads, at most one at a time
  std::function<void(const std::string&)> progress{};  // lines for people on long work; as `event`
};

struct TextOptions {
  int tokens_max = 128;
  float temperature = 0.0f;     // 0: always the most likely token
  int top_k = 0;                // keep the k most likely; 0: all
  float top_p = 1.0f;           // keep the most likely up to this probability
  float min_p = 0.0f;           // drop those below this share of the best one's probability
  float repeat_penalty = 1.0f;  // on the last 64 tokens; 1: none
  std::uint64_t seed = 0;
  std::vector<std::string> stops{};       // the text ends before the first of these
  bool ignore_end = false;                // go on after the model's end-of-text token
  std::chrono::milliseconds deadline{0};  // the text ends after the step that is under way then; 0: none
};

struct GeneratedText {
  std::string text;         // without the prompt
  std::vector<int> tokens;  // their ids
  std::string finish;       // "length", "context", "end", "stop", "cancelled" or "deadline"
  double first_token_s = 0.0;
  double total_s = 0.0;
  std::uint64_t wire_bytes = 0;  // sent and received between processes while this text was written
};

class Generator {
 public:
  /// A GGUF file or a Hugging Face directory. Errors: those of reading the model, kUnavailable naming a worker that
  /// cannot be reached, kNoMemory, kInvalidArgument.
  static Result<Generator> load(const std::string& model, const GeneratorOptions& options = {});

  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  /// Continues `prompt` (UTF-8; empty: from the beginning-of-text token). `on_text` is called with each piece as it
  /// comes, never half a character; the pieces join to the result's text. Calls from several threads are
  /// computed side by side, and by the replicas in turn; a text is the same whatever runs beside it.
  ///
  /// When a worker dies or leaves, the others take over its layers and the text goes on after a pause, the same to the
  /// last bit; when one joins, or comes back, it gets layers. Where too few are left, generate() waits for one for
  /// `recover_within`. Only then does it end with kUnavailable or kNoMemory (or goes on at another replica); the
  /// generator stays usable, and the next call tries again with the workers that there are by then.
  ///
  /// `stop` and the deadline are looked at after each step, not while workers are waited for.
  /// Errors also: kInvalidArgument (a prompt that is no UTF-8 or longer than the context, an option out of range).
  Result<GeneratedText> generate(std::string_view prompt, const TextOptions& options = {},
                                 const std::function<void(std::string_view)>& on_text = {}, std::stop_token stop = {});

  /// The ids of a text as the model sees it as a prompt. Errors: kInvalidArgument.
  Result<std::vector<int>> tokenize(std::string_view text) const;

  /// A line for each node: its layers and the bytes it holds. Waits while a text is generated.
  std::string describe() const;

  /// The nodes, as the membership has them now: workers that join are registered, lost ones unhealthy until they are
  /// back. Valid as long as the generator.
  const NodeRegistry& nodes() const;

  /// What each node has to do and how long it takes, by what it measured so far. Waits while a text is generated.
  BalanceReport balance() const;

  /// Makes the generator look for a better split for the times measured so far; call it while another thread
  /// generates. One sentence about what came of it. Errors: kInvalidArgument where the split follows no times;
  /// kUnavailable where nothing was generated for 15 s.
  Result<std::string> rebalance();

 private:
  struct State;
  explicit Generator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace butterfly
