// Requests on disk until they are answered, so that a server that was killed answers them after its next start. One
// file for each, its owner's alone, there as a whole or not at all. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "butterfly/base/descriptor.h"
#include "butterfly/base/result.h"
#include "butterfly/serve/protocol/generation_body.h"

namespace butterfly {

struct JournalEntry {
  std::string id{};
  std::string user{};
  Endpoint endpoint = Endpoint::kChat;
  std::uint64_t seed = 0;
  std::int64_t created = 0;
  std::string model{};  // tokens are those of this one alone
  std::string body{};   // JSON, as it came
};

class Journal {
 public:
  Journal() = default;  // keeps nothing
  /// Makes the folder and locks it for this process. Errors: kIo, kUnavailable where another process has it.
  static Result<Journal> open(const std::string& folder);

  bool is_on() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  Status add(const JournalEntry& entry) const;
  void remove(const std::string& id) const;
  /// What is there, oldest first. Files that are none of its own or damaged stay, with a line in the log.
  std::vector<JournalEntry> read() const;

 private:
  std::string path(const std::string& id) const { return folder_ + "/" + id + ".json"; }
  std::string folder_;
  Descriptor lock_;
};

/// "$XDG_STATE_HOME/butterfly/journal-NAME", or below ~/.local/state; empty where there is no home.
std::string standard_journal_folder(const std::string& name);

/// Letters, digits, _ and -, up to 64: safe as a name of a file.
bool is_request_id(std::string_view id);

}  // namespace butterfly
