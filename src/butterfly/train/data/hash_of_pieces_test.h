// For tests of files of tokens.
#pragma once

#include <string>
#include <vector>

#include "butterfly/train/data/token_file.h"

namespace butterfly {

/// The hash of a vocabulary of these pieces.
inline VocabularyHash hash_of_pieces(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary;
  vocabulary.pieces = pieces;
  return hash_of(vocabulary);
}

}  // namespace butterfly
