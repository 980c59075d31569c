// The loop of a node that holds a stage, or a share of one: receive a step, run it, send it on.
#pragma once

#include <stop_token>

#include "butterfly/base/result.h"
#include "butterfly/cluster/worker/stage_links.h"
#include "butterfly/stage/paced_stage.h"

namespace butterfly {

/// Runs until a channel closes or `stop` is requested (both give success at a step's border, since that is how an
/// epoch ends) or a peer breaks the protocol (its error). A step that fails is answered with its error and the stage
/// goes on, unless what failed is its tensor group: then the epoch ends here too, and a later one answers. A member of
/// a group has joined it.
Status run_stage(PacedStage& paced, const StageLinks& links, std::stop_token stop);

/// Gives a received payload its shape: tokens for a stage with the embedding, else activations, decoded from the wire
/// type. Errors: kProtocol when the size is not what the batch says; kNoMemory.
Status shape_input(const Stage& stage, const Message& message, Step& step);

/// Encodes activations in the wire type; tokens and logits stay as they are. Errors: kNoMemory.
Status shape_output(const Stage& stage, Message& message, const Step& step);

}  // namespace butterfly
