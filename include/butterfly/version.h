// The version of the library that these headers belong to: https://semver.org
#pragma once

namespace butterfly {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;
inline constexpr const char* kVersion = "0.1.0";

}  // namespace butterfly
