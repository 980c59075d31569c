// What generate --chat and chat share on the command line. Used by one thread.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "butterfly/base/json.h"
#include "butterfly/base/result.h"
#include "butterfly/infer/chat/chat_model.h"
#include "butterfly/model/format/chat_settings.h"
#include "options/options.h"
#include "shared/running.h"

namespace butterfly::app {

using ChatFlags = ChatOptions;

void add_chat_flags(Command command, ChatFlags& flags);

/// read_config() with the model's own sampling as the standard: the file of -c and flags win.
Result<InferenceConfig> read_chat_config(const InferenceFlags& flags, ChatSettings& settings);

}  // namespace butterfly::app
