#include "chat/line_reader.h"

#include <histedit.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cwchar>

#include "butterfly/base/descriptor.h"
#include "butterfly/text/utf8.h"

namespace butterfly::app {
namespace {

constexpr std::size_t kLineMost = std::size_t{16} << 20;
constexpr int kHistoryLines = 1000;

/// Ctrl-C while a line is typed: the line is gone.
unsigned char forget_line(EditLine* editor, int) {
  const LineInfo* line = el_line(editor);
  el_cursor(editor, static_cast<int>(line->lastchar - line->cursor));
  el_deletestr(editor, static_cast<int>(line->lastchar - line->buffer));
  return CC_REFRESH;
}

}  // namespace

struct LineReader::Impl {
  Descriptor wake{::eventfd(0, EFD_CLOEXEC)};
  EditLine* editor = nullptr;
  History* history = nullptr;
  std::string prompt;
  std::string pending;  // read, and not given out yet

  /// Waits for input. False at the end of it all.
  bool wait() const {
    std::array<pollfd, 2> both{{{STDIN_FILENO, POLLIN, 0}, {wake.get(), POLLIN, 0}}};
    while (::poll(both.data(), both.size(), -1) < 0) {
      if (errno != EINTR) return false;
    }
    return both[1].revents == 0;
  }

  /// More bytes into `pending`. False at the end.
  bool fill() {
    if (!wait()) return false;
    std::array<char, 65536> bytes{};
    ssize_t size = 0;
    do {
      size = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    } while (size < 0 && errno == EINTR);
    if (size <= 0) return false;
    pending.append(bytes.data(), static_cast<std::size_t>(size));
    return true;
  }

  /// What was typed before the terminal gave out each key: there, an end (Ctrl-D) shows as a zero byte.
  void take_typed_ahead() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    const std::size_t before = pending.size();
    if (::poll(&input, 1, 0) <= 0 || !fill()) return;
    constexpr char kControlD = '\x04';
    std::replace(pending.begin() + static_cast<std::ptrdiff_t>(before), pending.end(), '\0', kControlD);
  }

  /// The next character for the editor: 1, or 0 at the end.
  int character(wchar_t* out) {
    while (true) {
      const Utf8Step step = pending.empty() ? Utf8Step{.kind = Utf8Step::Kind::kIncomplete} : utf8_step(pending);
      if (step.kind == Utf8Step::Kind::kIncomplete) {
        if (!fill()) return 0;
        continue;
      }
      const bool valid = step.kind == Utf8Step::Kind::kCharacter;
      *out = valid ? static_cast<wchar_t>(step.code_point) : L'\uFFFD';
      pending.erase(0, static_cast<std::size_t>(step.size));
      return 1;
    }
  }

  void open_editor() {
    // libedit asks the locale which characters there are.
    if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX < 2) std::setlocale(LC_CTYPE, "C.UTF-8");
    editor = el_init("butterfly", stdin, stderr, stderr);
    history = history_init();
    if (editor == nullptr || history == nullptr) return;
    HistEvent event{};
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(
        editor, EL_PROMPT, +[](EditLine* e) {
          void* self = nullptr;
          el_get(e, EL_CLIENTDATA, &self);
          return static_cast<Impl*>(self)->prompt.data();
        });
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_HIST, ::history, history);
    el_set(
        editor, EL_GETCFN, +[](EditLine* e, wchar_t* out) {
          void* self = nullptr;
          el_get(e, EL_CLIENTDATA, &self);
          return static_cast<Impl*>(self)->character(out);
        });
    el_set(editor, EL_ADDFN, "forget-line", "Begins the line anew", forget_line);
    el_set(editor, EL_BIND, "^C", "forget-line", nullptr);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    // Ctrl-C is a key while a line is typed, and a signal otherwise.
    el_set(editor, EL_SETTY, "-d", "-isig", nullptr);
  }

  ~Impl() {
    if (editor != nullptr) el_end(editor);
    if (history != nullptr) history_end(history);
  }
};

LineReader::LineReader() : impl_(std::make_unique<Impl>()) {
  if (::isatty(STDIN_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1) impl_->open_editor();
}

LineReader::~LineReader() = default;

bool LineReader::is_terminal() const {
  return impl_->editor != nullptr;
}

std::optional<std::string> LineReader::read(const std::string& prompt) {
  if (impl_->editor != nullptr) {
    impl_->prompt = prompt;
    // By itself the editor shows its prompt first: a Ctrl-C in between would be a signal.
    el_set(impl_->editor, EL_PREP_TERM, 1);
    impl_->take_typed_ahead();
    int size = 0;
    const char* line = el_gets(impl_->editor, &size);
    if (line == nullptr || size <= 0) {
      std::fputc('\n', stderr);
      return {};
    }
    std::string text(line, static_cast<std::size_t>(size));
    while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
    return text;
  }
  std::string& pending = impl_->pending;
  std::size_t end = 0;
  std::size_t searched = 0;
  while ((end = pending.find('\n', searched)) == std::string::npos) {
    searched = pending.size();
    if (searched > kLineMost || !impl_->fill()) {
      if (pending.empty()) return {};
      return std::exchange(pending, {});
    }
  }
  std::string line = pending.substr(0, end);
  pending.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

void LineReader::remember(const std::string& line) {
  if (impl_->history == nullptr || line.empty()) return;
  HistEvent event{};
  ::history(impl_->history, &event, H_ENTER, line.c_str());
}

void LineReader::end() {
  const std::uint64_t one = 1;
  (void)!::write(impl_->wake.get(), &one, sizeof(one));
}

}  // namespace butterfly::app
