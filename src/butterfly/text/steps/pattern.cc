#include "butterfly/text/steps/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <time.h>

#include "butterfly/text/steps/pattern_dialect.h"
#include "butterfly/text/utf8.h"

namespace butterfly {

namespace {

constexpr std::size_t kExpressionBytesMax = 16 * 1024;
constexpr std::uint32_t kMatchLimit = 10'000'000;  // backtracking points of one match
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;

template <auto free_function>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    free_function(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;

constexpr int kStopped = -1000;  // no error number of PCRE2

std::int64_t thread_time_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

/// The match limit does not count the steps of a simple repeat, nor many cheap matches that each scan the whole text:
/// only a clock bounds every pattern.
int callout(pcre2_callout_block* /*block*/, void* budget) {
  return static_cast<PatternBudget*>(budget)->spent() ? kStopped : 0;
}

std::string message_of(int error) {
  PCRE2_UCHAR buffer[160] = {};
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

tl::unexpected<Error> match_error(int error) {
  if (error == kStopped || error == PCRE2_ERROR_MATCHLIMIT) {
    return make_error(ErrorCode::kTimeout, "the pre-tokenizer's pattern takes too long on this text");
  }
  return make_error(ErrorCode::kUnsupported, "the pre-tokenizer's pattern fails on this text: {}", message_of(error));
}

PCRE2_SPTR subject(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

PatternBudget::PatternBudget(std::size_t text_bytes, std::size_t patterns)
    : deadline_ns_(thread_time_ns() + 1'000'000'000 + 5'000 * static_cast<std::int64_t>(text_bytes * patterns)) {}

void PatternBudget::look_at_clock() {
  spent_ = spent_ || thread_time_ns() > deadline_ns_;
}

struct Pattern::Impl {
  Code code;
  PatternSource source = PatternSource::kBuiltIn;

  int match(std::string_view text, std::size_t from, pcre2_match_data* data, pcre2_match_context* context) const {
    // The whole text was checked to be UTF-8, and `from` is the border of a character.
    const std::uint32_t options = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(code.get(), subject(text), text.size(), from, options, data, context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code.get(), subject(text), text.size(), from, options | PCRE2_NO_JIT, data, context);
    }
    return found;
  }

  template <typename Visit>
  Status for_each(std::string_view text, PatternBudget& budget, const Visit& visit) const;
};

Pattern::Pattern(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Result<Pattern> Pattern::compile(const std::string& expression, PatternSource source, PatternDialect dialect) {
  if (expression.size() > kExpressionBytesMax) {
    return make_error(ErrorCode::kUnsupported, "the pre-tokenizer's pattern has {} bytes, at most {} are supported",
                      expression.size(), kExpressionBytesMax);
  }
  BF_ASSIGN_OR_RETURN(const std::string spelled, to_pcre2(expression, dialect));
  CompileContext context(pcre2_compile_context_create(nullptr));
  if (!context) return make_error(ErrorCode::kNoMemory, "no memory for the pre-tokenizer's pattern");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  options |= dialect == PatternDialect::kOniguruma ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY;
  if (source == PatternSource::kUntrusted) options |= PCRE2_AUTO_CALLOUT;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->source = source;
  impl->code.reset(pcre2_compile(subject(spelled), spelled.size(), options, &error, &offset, context.get()));
  if (!impl->code) {
    return make_error(ErrorCode::kBadData, "the pre-tokenizer's pattern is no regular expression: {} at byte {} of {}",
                      message_of(error), offset, spelled.size());
  }
  // Where the machine has no JIT compiler, matches are interpreted: slower, but the same.
  (void)pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE);
  return Pattern(std::move(impl));
}

template <typename Visit>
Status Pattern::Impl::for_each(std::string_view text, PatternBudget& budget, const Visit& visit) const {
  // Made once per thread: a sequence of patterns looks at many short parts.
  static thread_local const MatchData data(pcre2_match_data_create(1, nullptr));
  static thread_local const MatchContext context(pcre2_match_context_create(nullptr));
  if (!data || !context) return make_error(ErrorCode::kNoMemory, "no memory for a match of the pre-tokenizer");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);
  const bool watched = source == PatternSource::kUntrusted;
  pcre2_set_callout(context.get(), watched ? &callout : nullptr, watched ? &budget : nullptr);

  std::size_t from = 0;  // where the next match may begin
  while (from < text.size()) {
    const int found = match(text, from, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) return match_error(found);
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = ends[0];
    const std::size_t end = ends[1];
    if (begin < from || end < begin || end > text.size()) {
      return make_error(ErrorCode::kUnsupported, "the pre-tokenizer's pattern matches [{}, {}) when asked from {}",
                        begin, end, from);
    }
    visit(begin, end);
    from = end;
    if (end == begin && end < text.size()) from += static_cast<std::size_t>(utf8_step(text.substr(end)).size);
    if (watched && budget.spent()) return match_error(kStopped);
  }
  return {};
}

Status Pattern::split(std::string_view text, PatternBudget& budget, std::vector<std::string_view>& parts) const {
  std::size_t cut = 0;  // everything before is in `parts`
  BF_TRY(impl_->for_each(text, budget, [&](std::size_t begin, std::size_t end) {
    if (begin > cut) parts.push_back(text.substr(cut, begin - cut));
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    cut = end;
  }));
  if (cut < text.size()) parts.push_back(text.substr(cut));
  return {};
}

Status Pattern::find_all(std::string_view text, PatternBudget& budget, std::vector<Range<std::size_t>>& matches) const {
  std::size_t last = std::string_view::npos;
  return impl_->for_each(text, budget, [&](std::size_t begin, std::size_t end) {
    // An empty match right behind another match is none.
    if (begin == end && begin == last) return;
    matches.push_back({begin, end});
    last = end;
  });
}

}  // namespace butterfly
