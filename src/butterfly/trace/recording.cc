#include "butterfly/trace/recording.h"

#include <charconv>
#include <cstring>
#include <type_traits>

namespace butterfly::trace {
namespace {

constexpr std::string_view kMagic = "BFTRACE2";
constexpr std::uint64_t kSpanBytes = 48;
constexpr std::uint32_t kFactsMax = 4096;

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<std::uint32_t>(text.size()));
  out.append(text);
}

void put_names(std::string& out, std::size_t count, std::string_view (*name)(std::size_t)) {
  put(out, static_cast<std::uint32_t>(count));
  for (std::size_t i = 0; i < count; ++i) put_text(out, name(i));
}

template <typename Enum>
std::string_view name_at(std::size_t at) {
  return to_string(static_cast<Enum>(at));
}

void put_span(std::string& out, const Span& span) {
  put(out, span.begin_ns);
  put(out, span.end_ns);
  put(out, span.work.flops);
  put(out, (span.work.bytes & 0xffffffffffffu) | std::uint64_t{span.work.type} << 48 |
               static_cast<std::uint64_t>(span.work.pass) << 56);
  put(out, span.work.number);
  put(out, span.work.in);
  put(out, span.work.out);
  put(out, span.thread << 8 | static_cast<std::uint32_t>(span.zone));
}

template <typename Visit>
void each_number(Sample& sample, const Visit& visit) {
  for (std::uint64_t* value :
       {&sample.at_ns, &sample.resident_bytes, &sample.cpu_ns, &sample.system_ns, &sample.run_queue_ns,
        &sample.machine_busy_ns, &sample.machine_stolen_ns, &sample.minor_faults, &sample.heap_bytes,
        &sample.heap_free_bytes, &sample.mapped_bytes, &sample.file_bytes}) {
    visit(*value);
  }
  visit(sample.loop_ns);
  for (std::uint64_t& value : sample.held_bytes) visit(value);
  for (std::uint64_t& value : sample.counters) visit(value);
}

constexpr std::uint64_t kSampleBytes = sizeof(std::uint64_t) * (13 + static_cast<std::uint64_t>(Owner::kCount) +
                                                                static_cast<std::uint64_t>(Counter::kCount));

/// Reads in order; after the first thing that is missing everything reads as nothing.
class Parser {
 public:
  explicit Parser(ByteSpan bytes) : reader_(bytes) {}

  template <typename T>
  T number() {
    const std::optional<T> value = reader_.read<T>();
    if (!value) short_ = true;
    return value.value_or(T{});
  }
  std::string text() {
    const auto size = number<std::uint32_t>();
    const std::optional<ByteSpan> bytes = reader_.take(size);
    if (!bytes) short_ = true;
    return bytes ? std::string(as_text(*bytes)) : std::string();
  }
  bool is_short() const { return short_; }
  std::size_t remaining() const { return reader_.remaining(); }
  std::size_t position() const { return reader_.position(); }

 private:
  ByteReader reader_;
  bool short_ = false;
};

/// Recordings of another version have other numbers for the same names: they are refused, not guessed.
Status check_names(Parser& parser, std::string_view what, std::size_t count, std::string_view (*name)(std::size_t)) {
  const auto found = parser.number<std::uint32_t>();
  if (parser.is_short() || found != count) {
    return make_error(ErrorCode::kBadData, "the recording has {} {}, this program {}: it is of another version", found,
                      what, count);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const std::string text = parser.text();
    if (text == name(i)) continue;
    return make_error(ErrorCode::kBadData, "the recording's {} number {} is not '{}': it is of another version", what,
                      i, name(i));
  }
  return {};
}

Result<Span> parse_span(Parser& parser) {
  Span span;
  span.begin_ns = parser.number<std::uint64_t>();
  span.end_ns = parser.number<std::uint64_t>();
  span.work.flops = parser.number<std::uint64_t>();
  const auto packed = parser.number<std::uint64_t>();
  span.work.bytes = packed & 0xffffffffffffu;
  span.work.type = static_cast<std::uint8_t>(packed >> 48);
  span.work.pass = static_cast<Pass>(packed >> 56);
  span.work.number = parser.number<std::uint32_t>();
  span.work.in = parser.number<std::uint32_t>();
  span.work.out = parser.number<std::uint32_t>();
  const auto thread_zone = parser.number<std::uint32_t>();
  span.thread = thread_zone >> 8;
  span.zone = static_cast<Zone>(thread_zone & 0xffu);
  if (span.zone >= Zone::kCount || span.work.pass > Pass::kRecompute || span.end_ns < span.begin_ns) {
    return make_error(ErrorCode::kBadData, "a span of zone {} lasts from {} to {} ns", thread_zone & 0xffu,
                      span.begin_ns, span.end_ns);
  }
  return span;
}

tl::unexpected<Error> too_short(const Parser& parser, std::string_view what) {
  return make_error(ErrorCode::kBadData, "the recording ends within {}, after {} bytes", what, parser.position());
}

Status parse_head(Parser& parser, Recording& recording) {
  const auto facts = parser.number<std::uint32_t>();
  if (facts > kFactsMax) {
    return make_error(ErrorCode::kBadData, "the recording says that it has {} facts, at most {} are read", facts,
                      kFactsMax);
  }
  for (std::uint32_t i = 0; i < facts && !parser.is_short(); ++i) {
    std::string name = parser.text();
    recording.facts[std::move(name)] = parser.text();
  }
  recording.begin_ns = parser.number<std::uint64_t>();
  recording.end_ns = parser.number<std::uint64_t>();
  recording.clock_offset_ns = parser.number<std::int64_t>();
  recording.clock_error_ns = parser.number<std::uint64_t>();
  recording.lost = parser.number<std::uint64_t>();
  recording.dropped = parser.number<std::uint64_t>();
  if (parser.is_short()) return too_short(parser, "its facts");
  return {};
}

Result<std::uint64_t> parse_count(Parser& parser, std::string_view what, std::uint64_t bytes_each) {
  const auto count = parser.number<std::uint64_t>();
  if (parser.is_short()) return too_short(parser, what);
  if (count > parser.remaining() / bytes_each) {
    return make_error(ErrorCode::kBadData, "the recording says that it has {} {}, and {} bytes are left", count, what,
                      parser.remaining());
  }
  return count;
}

}  // namespace

std::string Recording::fact(std::string_view name) const {
  const auto found = facts.find(std::string(name));
  return found == facts.end() ? std::string() : found->second;
}

double Recording::number(std::string_view name) const {
  const std::string text = fact(name);
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0.0;
}

std::string to_bytes(const Recording& recording) {
  std::string out(kMagic);
  out.reserve(4096 + recording.spans.size() * kSpanBytes + recording.samples.size() * kSampleBytes);
  put_names(out, static_cast<std::size_t>(Zone::kCount), name_at<Zone>);
  put_names(out, static_cast<std::size_t>(Counter::kCount), name_at<Counter>);
  put_names(out, static_cast<std::size_t>(Owner::kCount), name_at<Owner>);
  put(out, static_cast<std::uint32_t>(recording.facts.size()));
  for (const auto& [name, value] : recording.facts) {
    put_text(out, name);
    put_text(out, value);
  }
  put(out, recording.begin_ns);
  put(out, recording.end_ns);
  put(out, recording.clock_offset_ns);
  put(out, recording.clock_error_ns);
  put(out, recording.lost);
  put(out, recording.dropped);
  put(out, static_cast<std::uint64_t>(recording.spans.size()));
  for (const Span& span : recording.spans) put_span(out, span);
  put(out, static_cast<std::uint64_t>(recording.samples.size()));
  for (Sample sample : recording.samples) each_number(sample, [&out](const auto& value) { put(out, value); });
  return out;
}

Result<Recording> parse_recording(ByteSpan bytes) {
  if (bytes.size() < kMagic.size() || as_text(bytes.first(kMagic.size())) != kMagic) {
    return make_error(ErrorCode::kBadData, "{} bytes do not begin with {}: this is no recording", bytes.size(), kMagic);
  }
  Parser parser(bytes.subspan(kMagic.size()));
  BF_TRY(check_names(parser, "zones", static_cast<std::size_t>(Zone::kCount), name_at<Zone>));
  BF_TRY(check_names(parser, "counters", static_cast<std::size_t>(Counter::kCount), name_at<Counter>));
  BF_TRY(check_names(parser, "owners", static_cast<std::size_t>(Owner::kCount), name_at<Owner>));
  Recording recording;
  BF_TRY(parse_head(parser, recording));
  BF_ASSIGN_OR_RETURN(const std::uint64_t spans, parse_count(parser, "spans", kSpanBytes));
  recording.spans.reserve(static_cast<std::size_t>(spans));
  for (std::uint64_t i = 0; i < spans; ++i) {
    BF_ASSIGN_OR_RETURN(const Span span, parse_span(parser));
    recording.spans.push_back(span);
  }
  BF_ASSIGN_OR_RETURN(const std::uint64_t samples, parse_count(parser, "samples", kSampleBytes));
  recording.samples.resize(static_cast<std::size_t>(samples));
  for (Sample& sample : recording.samples) {
    each_number(sample, [&parser]<typename T>(T& value) { value = parser.number<T>(); });
  }
  if (parser.remaining() > 0) {
    return make_error(ErrorCode::kBadData, "{} bytes follow the recording's end", parser.remaining());
  }
  return recording;
}

}  // namespace butterfly::trace
