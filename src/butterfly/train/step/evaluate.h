// How well the model predicts what it was not trained on. Plain function, used by the thread that trains.
#pragma once

#include "butterfly/base/result.h"
#include "butterfly/model/training/trainable_transformer.h"
#include "butterfly/train/data/dataset.h"
#include "butterfly/train/step/train_step.h"
#include "butterfly/wire/collective/collectives.h"

namespace butterfly {

/// The mean loss over every target of the validation part, nats per token; 0 where there is none. Ranks compute a share
/// each and all get the same bits, whatever their number; as stages of a pipeline their layers' share of all.
/// `collectives` is null for one rank. Errors: those of the transformer and of the collectives.
Result<double> validation_loss(TrainableTransformer& transformer, const Dataset& data, Collectives* collectives,
                               const StagePlace* stages = nullptr);

}  // namespace butterfly
