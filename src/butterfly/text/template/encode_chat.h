// From a rendered conversation to ids: tokens that steer the model count only where the template wrote them.
#pragma once

#include <vector>

#include "butterfly/base/ids.h"
#include "butterfly/base/result.h"
#include "butterfly/text/template/chat_template.h"
#include "butterfly/text/tokenizer.h"

namespace butterfly {

/// Ids of `text`, which `chat_template` rendered. No token is put in front: templates write their own. A control token
/// that a message spells, wholly or in part, is encoded as plain text; so is a user-defined one that the template
/// itself uses, such as "<think>". Errors: those of the tokenizer.
Result<std::vector<TokenId>> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                                         const MarkedText& text);

}  // namespace butterfly
