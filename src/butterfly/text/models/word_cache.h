// Words of one text that were encoded already, and where their ids are: words repeat. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "butterfly/base/range.h"

namespace butterfly {

class WordCache {
 public:
  struct Entry {
    std::string_view word;
    Range<std::size_t> ids;
  };

  /// The entry of `word`, new and empty where `is_new`. The reference is good until the next call.
  Entry& find(std::string_view word, bool& is_new) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    Slot& slot = slot_of(word, std::hash<std::string_view>{}(word));
    is_new = slot.entry.word.data() == nullptr;
    if (is_new) {
      slot.entry.word = word;
      ++count_;
    }
    return slot.entry;
  }

 private:
  struct Slot {
    std::size_t hash = 0;
    Entry entry;
  };

  Slot& slot_of(std::string_view word, std::size_t hash) {
    std::size_t place = hash & (slots_.size() - 1);
    while (slots_[place].entry.word.data() != nullptr &&
           (slots_[place].hash != hash || slots_[place].entry.word != word)) {
      place = (place + 1) & (slots_.size() - 1);
    }
    slots_[place].hash = hash;
    return slots_[place];
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 256 : slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.entry.word.data() != nullptr) slot_of(slot.entry.word, slot.hash) = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t count_ = 0;
};

}  // namespace butterfly
