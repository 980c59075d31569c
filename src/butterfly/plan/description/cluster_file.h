// A cluster that is described rather than asked: nodes, and what lies between them, read from a TOML file
// (docs/formats/cluster.md). Plain values; the functions are thread-safe. What comes from the file is checked.
#pragma once

#include <string>

#include "butterfly/base/result.h"
#include "butterfly/plan/description/cluster_model.h"

namespace butterfly {

/// More than planning is meant for; the links of that number of nodes take 256 MiB.
inline constexpr int kMaxDescribedNodes = 4096;

/// Nodes in the file's order, first those of [[node]], then the members of each [[group]]. `name` stands for the text
/// in errors. Errors: kBadData naming the key, its value and what was expected: broken TOML, unknown or missing keys,
/// numbers that are no positive finite numbers, names twice or unknown, no nodes, more than kMaxDescribedNodes, nodes
/// that no link connects with the others.
Result<PlanCluster> parse_cluster(const std::string& text, const std::string& name);

/// Errors: kNotFound, kIo, kBadData for a directory or more than 16 MiB; those of parse_cluster().
Result<PlanCluster> read_cluster_file(const std::string& path);

}  // namespace butterfly
