// Guesses how a text goes on. The model then computes several guessed tokens in one step, and what it would have drawn
// anyway is compared with them, so guesses change when tokens come, never which.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"

namespace butterfly {

/// Who guesses.
enum class Speculation : std::uint8_t { kOff, kNgram };

/// By one thread.
class Drafter {
 public:
  virtual ~Drafter() = default;

  /// At most `most` tokens that may follow `tokens`, the whole text so far; fewer or none where it has no guess. A text
  /// grows from call to call, and a number that was forgotten may stand for another text. Errors: those of a model that
  /// guesses; the text then goes on without guesses.
  virtual Result<std::vector<TokenId>> propose(SequenceId sequence, std::span<const TokenId> tokens,
                                               std::size_t most) = 0;

  /// The text has ended.
  virtual void forget(SequenceId sequence) = 0;

  /// Of one guessed token, as measured; 0 where it costs next to nothing.
  virtual double seconds_per_token() const { return 0; }
};

}  // namespace butterfly
