// Which file a path names, and when it was last written to. Plain functions, thread-safe.
#pragma once

#include <chrono>
#include <string>

namespace butterfly {

/// Device, inode, size, time of the last write and of the last change of any kind; "gone" where it cannot be examined.
/// The same text at two moments: the same bytes, unless a user set the machine's clock back to hide it.
std::string file_stamp(const std::string& path);

/// How long after a change of the file another one surely has another stamp: times of files move in steps of up to 10
/// ms. 0: from now on; the whole time where the file cannot be examined.
std::chrono::milliseconds until_stamp_settles(const std::string& path);

}  // namespace butterfly
