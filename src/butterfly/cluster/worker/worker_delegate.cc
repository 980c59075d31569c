#include "butterfly/cluster/worker/worker_delegate.h"

#include <thread>

#include "butterfly/trace/trace.h"

namespace butterfly {

void serve_all(WorkerDelegate& delegate, std::span<const Assignment> assignments, std::span<const StageLinks> links,
               const std::stop_token& stop, const std::function<void(std::size_t, Status)>& on_end,
               const std::string& node) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    threads.emplace_back([&, i] {
      trace::name_thread(node.empty() ? describe(assignments[i]) : node + ", " + describe(assignments[i]));
      on_end(i, delegate.serve(assignments[i], links[i], stop));
    });
  }
}

}  // namespace butterfly
