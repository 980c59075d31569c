// Lines from a person at a terminal, with editing and history, or from a pipe. Prompts and echo go to stderr. Not
// thread-safe, but for end().
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace butterfly::app {

class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// The next line without its end; nothing at the end of the input. At a terminal `prompt` stands before it.
  std::optional<std::string> read(const std::string& prompt);

  /// For the history that the cursor keys walk through.
  void remember(const std::string& line);

  /// Whether a person types.
  bool is_terminal() const;

  /// The input is over, also for a read() that waits. From any thread.
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace butterfly::app
