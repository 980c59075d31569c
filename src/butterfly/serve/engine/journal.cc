#include "butterfly/serve/engine/journal.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "butterfly/base/json.h"
#include "butterfly/base/log.h"
#include "butterfly/wire/enrolment/secret_files.h"

namespace butterfly {
namespace {

constexpr std::size_t kEntryBytesMax = std::size_t{1} << 30;

const char* name_of(Endpoint endpoint) {
  switch (endpoint) {
    case Endpoint::kCompletion:
      return "completion";
    case Endpoint::kResponse:
      return "response";
    case Endpoint::kChat:
      break;
  }
  return "chat";
}

Result<JournalEntry> parse_entry(const std::string& path) {
  BF_ASSIGN_OR_RETURN(const std::string text, read_file(path, FileAccess::kOwnerOnly, kEntryBytesMax));
  const ApiJson json = parse_ordered_json(text);
  const auto has = [&json](const char* name, auto is) { return json.contains(name) && (json[name].*is)(); };
  const bool fits = json.is_object() && has("id", &ApiJson::is_string) && has("user", &ApiJson::is_string) &&
                    has("endpoint", &ApiJson::is_string) && has("seed", &ApiJson::is_number_unsigned) &&
                    has("created", &ApiJson::is_number_integer) && has("model", &ApiJson::is_string) &&
                    has("body", &ApiJson::is_string) && is_request_id(json["id"].get<std::string>());
  if (!fits) return make_error(ErrorCode::kBadData, "{}: is no entry of a journal", path);
  JournalEntry entry{.id = json["id"],
                     .user = json["user"],
                     .endpoint = Endpoint::kChat,
                     .seed = json["seed"],
                     .created = json["created"],
                     .model = json["model"],
                     .body = json["body"]};
  const std::string endpoint = json["endpoint"];
  for (const Endpoint each : {Endpoint::kCompletion, Endpoint::kResponse}) {
    if (endpoint == name_of(each)) entry.endpoint = each;
  }
  return entry;
}

}  // namespace

bool is_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::ranges::all_of(id, [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
  });
}

std::string standard_journal_folder(const std::string& name) {
  std::string safe = name;
  std::ranges::replace_if(
      safe, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '-'; }, '_');
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state == '/') return fmt::format("{}/butterfly/journal-{}", state, safe);
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return {};
  return fmt::format("{}/.local/state/butterfly/journal-{}", home, safe);
}

Result<Journal> Journal::open(const std::string& folder) {
  BF_TRY(make_secret_folder(folder));
  Journal journal;
  journal.folder_ = folder;
  journal.lock_ = Descriptor(::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!journal.lock_.valid()) {
    return make_error(ErrorCode::kIo, "{}/lock: cannot be opened: {}", folder, std::strerror(errno));
  }
  if (::flock(journal.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return make_error(ErrorCode::kUnavailable,
                      "{} is the journal of a server that runs: choose another folder with --journal", folder);
  }
  return journal;
}

Status Journal::add(const JournalEntry& entry) const {
  if (!is_on()) return {};
  const ApiJson json = {{"id", entry.id},     {"user", entry.user},       {"endpoint", name_of(entry.endpoint)},
                        {"seed", entry.seed}, {"created", entry.created}, {"model", entry.model},
                        {"body", entry.body}};
  return write_file(path(entry.id), dump_json(json) + "\n", FileAccess::kOwnerOnly);
}

void Journal::remove(const std::string& id) const {
  if (is_on()) ::unlink(path(id).c_str());
}

std::vector<JournalEntry> Journal::read() const {
  std::vector<JournalEntry> entries;
  if (!is_on()) return entries;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder_, error)) {
    if (file.path().extension() != ".json") continue;
    auto entry = parse_entry(file.path().string());
    if (!entry) {
      log().warn("journal: {}", entry.error().message);
      continue;
    }
    entries.push_back(std::move(*entry));
  }
  std::ranges::sort(entries, {}, [](const JournalEntry& entry) { return std::pair(entry.created, entry.id); });
  return entries;
}

}  // namespace butterfly
