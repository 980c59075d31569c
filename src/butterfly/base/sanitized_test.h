// Whether a sanitizer watches: then what is only long, not new, is left out of a test.
#pragma once

namespace butterfly {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace butterfly
