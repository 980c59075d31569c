// What a coordinator knows of its workers beyond their own description: how fast they turned out to be, and the links
// between them where those were measured. Not thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "butterfly/cluster/membership/membership.h"
#include "butterfly/plan/cost/predict.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

/// Whether a node of this address is certainly on this host.
bool on_loopback(std::string_view address);

class KnownCluster {
 public:
  /// Measures every link between these members, and from here to each, that is not known yet; a tenth of a second
  /// for each, or some more over slow ones. What cannot be measured by the deadline stays unknown.
  /// Ends early where it is stopped.
  void learn_links(const Membership& membership, const Members& members, const NodeAccess& access, Deadline deadline,
                   const std::stop_token& stop = {});
  void learn_link(const std::string& from, const std::string& to, const LinkDescriptor& link);

  /// How many times slower than it says of itself a worker is; 1 until learnt.
  void learn_slowness(const std::string& address, double slowness);
  double slowness(const std::string& address) const;

  /// For planning: nodes with the speed that they showed, workers of one address on one host, links that were
  /// measured. One that was not counts as the slowest of those that were, or as PlanCluster assumes.
  PlanCluster cluster(const std::vector<NodeDescriptor>& nodes) const;

  /// The first of the links that these transfers use which nobody measured, "from ... to ..."; empty where there is
  /// none. Between nodes that all are on this host's loopback interface what PlanCluster assumes is good enough.
  std::string unmeasured(const std::vector<NodeDescriptor>& nodes, const std::vector<LinkUse>& uses) const;

  /// Stands for the coordinator in learn_link().
  static constexpr const char* kHere = "";

 private:
  bool knows(const std::string& from, const std::string& to) const;
  LinkDescriptor link(const std::string& from, const std::string& to) const;

  std::map<std::string, double> slowness_;
  std::map<std::pair<std::string, std::string>, LinkDescriptor> links_;
};

}  // namespace butterfly
