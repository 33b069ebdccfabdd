// A convolution in one direction on cuDNN 9's backend API. ConvPlanner lists the ways to compute
// it; a CudnnPlan is one of them, ready to run.
//
// A *way* is an engine configuration: an engine of cuDNN and its knobs. cuDNN's heuristics list the
// ways, the most promising first. In bf16, ways with tensor cores are put first. Ways that do not
// give the same bits every time, or that compute with less precision than requested, are excluded.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/cudnn_descriptor.hpp"
#include "kernels/extent.hpp"
#include "kernels/tensor.hpp"

namespace dp::cuda {

enum class ConvDirection { forward, backward_data, backward_weights };
[[nodiscard]] const char* name_of(ConvDirection direction);

// The problem as cuDNN sees it: dense tensors, x and y NHWC, w KRSC, in the types that they have in
// memory. Products are summed in fp32. In bf16 cuDNN needs channels in multiples of 8.
struct ConvProblem {
  ConvDirection direction = ConvDirection::forward;
  Shape x, y;
  Extent kernel = 3;
  std::size_t stride = 1;
  Extent padding = 1;
  DataType x_type = DataType::f32, w_type = DataType::f32, y_type = DataType::f32;
  bool allows_tf32 = false;  // fp32 operands may be rounded to TF32
};
// "3x3 stride 1 convolution of 128x32x32x64 -> 64 channels, backward_data"
[[nodiscard]] std::string to_string(const ConvProblem& problem);

// The GPU that plans are made for: a handle's GPU, or a GPU that is only described by `properties`
// (a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). Plans for a described GPU cannot run here.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  cudnnBackendDescriptor_t properties = nullptr;
};

// The pointers of one run. They are kept for the next run, which usually has the same ones.
class ConvPointers {
 public:
  // x, w, y by role: in backward_data x is dx, in backward_weights w is dw. All aligned to 16
  // bytes.
  void set(void* x, void* w, void* y, void* workspace);
  [[nodiscard]] cudnnBackendDescriptor_t get() const { return pack_.get(); }

 private:
  void* now_[4] = {};
  Descriptor pack_;
};

// A convolution as cuDNN's operation graph.
struct ConvGraph {
  Descriptor x, w, y, convolution, operation, graph;
};

class CudnnPlan {
 public:
  CudnnPlan(std::string name, Descriptor plan, std::shared_ptr<const ConvGraph> graph,
            std::shared_ptr<const Descriptor> configuration, std::size_t workspace_bytes)
      : name_(std::move(name)),
        graph_(std::move(graph)),
        configuration_(std::move(configuration)),
        plan_(std::move(plan)),
        workspace_bytes_(workspace_bytes) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::size_t workspace_bytes() const { return workspace_bytes_; }
  // Enqueues the plan on the handle's stream. Overwrites the output.
  void run(cudnnHandle_t handle, const ConvPointers& pointers) const;

 private:
  std::string name_;
  // The plan needs these objects as long as it lives. The plans of one planner share them.
  std::shared_ptr<const ConvGraph> graph_;
  std::shared_ptr<const Descriptor> configuration_;
  Descriptor plan_;
  std::size_t workspace_bytes_;
};

class ConvPlanner {
 public:
  // Queries the heuristics. Does not throw if they know no way; count() is then 0.
  ConvPlanner(const CudnnTarget& target, const ConvProblem& problem);

  [[nodiscard]] std::size_t count() const { return ways_.size(); }
  // "engine 38 2=1 11=0", "engine 12 winograd 5=1": a name that identifies a configuration in all
  // runs with this cuDNN. "2=1" sets the knob of type 2 to the value 1.
  [[nodiscard]] const std::string& name(std::size_t i) const { return ways_[i].name; }
  // Whether building way i compiles a kernel, which takes about a second.
  [[nodiscard]] bool is_compiled(std::size_t i) const { return ways_[i].is_compiled; }
  [[nodiscard]] bool has_tensor_cores(std::size_t i) const { return ways_[i].has_tensor_cores; }
  // Returns null if cuDNN refuses after all, or if the workspace exceeds kMostWorkspaceBytes.
  [[nodiscard]] std::shared_ptr<const CudnnPlan> build(std::size_t i) const;
  // Why no way was found or built, in cuDNN's words.
  [[nodiscard]] const std::string& last_refusal() const { return last_refusal_; }

  static constexpr std::size_t kMostWorkspaceBytes = std::size_t{1} << 30;

 private:
  struct Way {
    std::string name;
    bool is_compiled, has_tensor_cores;
    std::shared_ptr<const Descriptor> configuration;
  };

  void describe_operation();
  void ask(cudnnBackendHeurMode_t mode);
  void prefer_tensor_cores();

  CudnnTarget target_;
  ConvProblem problem_;
  std::shared_ptr<const ConvGraph> graph_;  // null if cuDNN refuses it
  std::vector<Way> ways_;
  mutable std::string last_refusal_;
};

}  // namespace dp::cuda
