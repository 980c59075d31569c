// Names of the control messages. A file that reads or writes one includes control.pb.h, and is no header: protobuf's
// headers cost every file that parses them seconds.
#pragma once

namespace butterfly::control {

class Assign;
class ControlMessage;
class CoordinatorStatus;
class Failure;
class MeasureLinks;
class ModelConfig;
class Node;
class Ready;
class ReadyShare;
class Share;
class Stage;
class StageSettings;
class WeightMessage;
class WorkerStatus;

}  // namespace butterfly::control
