// Whether a sanitizer watches: then what is only long, not new, is left out of a test.
#pragma once

namespace butterfly {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// Whether it is the one that looks for races: what differs in numbers alone shows it nothing new.
#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadsWatched = true;
#else
inline constexpr bool kThreadsWatched = false;
#endif

}  // namespace butterfly
