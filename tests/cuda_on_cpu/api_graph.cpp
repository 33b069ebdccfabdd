// Captures of streams and graphs.
#include <algorithm>

#include "tests/cuda_on_cpu/api.hpp"

using namespace dp::cuda_on_cpu;

namespace {

// Whether all work captured by other streams comes before the end of the capture.
bool is_joined(const Capture& capture) {
  std::vector<bool> comes_before(capture.nodes.size(), false);
  std::vector<std::size_t> open = capture.origin->captured;
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (comes_before[node]) continue;
    comes_before[node] = true;
    open.insert(open.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](cudaStream_t stream) {
    return std::all_of(stream->captured.begin(), stream->captured.end(),
                       [&](std::size_t node) { return comes_before[node]; });
  });
}

cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph) {
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  *graph = nullptr;
  stream = queue.find_locked(stream);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return cudaErrorIllegalState;
  if (capture->origin != stream) {
    capture->is_invalid = true;
    return cudaErrorStreamCaptureUnmatched;
  }
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const bool joined = is_joined(*capture);
  for (cudaStream_t each : capture->streams) {
    each->capture = nullptr;
    each->captured.clear();
  }
  std::erase(queue.captures, capture);
  if (capture->is_invalid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new CUgraph_st{std::make_shared<std::vector<Node>>(std::move(capture->nodes))};
  return cudaSuccess;
}

bool has_priorities(const std::vector<Node>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const Node& node) { return node.priority != nodes.front().priority; });
}

cudaError_t launch_graph(cudaGraphExec_t executable, cudaStream_t stream) {
  Queue& queue = Queue::get();
  std::unique_lock lock(queue.mutex);
  stream = queue.find_locked(stream);
  if (stream == nullptr || stream->device != current_device()) {
    return cudaErrorInvalidResourceHandle;
  }
  if (queue.is_worker()) return cudaErrorNotPermitted;
  if (device_fault() != cudaSuccess) return device_fault();
  if (stream->capture) {  // CUDA makes it a child graph; nobody here does
    stream->capture->is_invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  auto run = std::make_unique<GraphRun>();
  run->nodes = executable->nodes;
  run->left = run->nodes->size();
  run->records.resize(run->left);
  for (std::size_t i = 0; i < run->nodes->size(); ++i) {
    const Node& node = (*run->nodes)[i];
    run->missing.push_back(node.after.size());
    if (node.after.empty()) run->ready.push_back(i);
    if (!node.event) continue;
    run->records[i] = std::make_shared<Record>();
    run->records[i]->stream = stream;
    node.event->capture = nullptr;
    node.event->record = run->records[i];
  }
  Operation operation;
  operation.graph = std::move(run);
  if (executable->last) operation.waits.push_back(executable->last);
  executable->last = queue.append_locked(stream, std::move(operation));
  queue.after_enqueue(lock);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  stream = queue.find_locked(stream);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  if (stream == queue.legacy()) return note(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return note(cudaErrorIllegalState);
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->capture->streams = {stream};
  stream->captured.clear();
  queue.captures.push_back(stream->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return note(end_capture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Queue& queue = Queue::get();
  const std::lock_guard lock(queue.mutex);
  stream = queue.find_locked(stream);
  if (stream == nullptr) return note(cudaErrorInvalidResourceHandle);
  *status = !stream->capture              ? cudaStreamCaptureStatusNone
            : stream->capture->is_invalid ? cudaStreamCaptureStatusInvalidated
                                          : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (graph == nullptr) return note(cudaErrorInvalidValue);
  // CUDA would accept it and run all nodes with the priority of the launching stream, which cannot
  // be intended.
  if (has_priorities(*graph->nodes) && (flags & cudaGraphInstantiateFlagUseNodePriority) == 0) {
    return note(cudaErrorInvalidValue);
  }
  auto nodes = std::make_shared<std::vector<Node>>(*graph->nodes);
  for (std::size_t i = 0; i < nodes->size(); ++i) {
    for (const std::size_t earlier : (*nodes)[i].after) (*nodes)[earlier].before.push_back(i);
  }
  *executable = new CUgraphExec_st{std::move(nodes), nullptr};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (executable == nullptr) return note(cudaErrorInvalidValue);
  return note(launch_graph(executable, stream));
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  if (nodes != nullptr) return note(cudaErrorInvalidValue);  // the number alone
  *count = graph->nodes->size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const std::lock_guard lock(Queue::get().mutex);  // its nodes live until the last run has ended
  delete executable;
  return cudaSuccess;
}

}  // extern "C"
