// A network: the graph of a model, its parameters, and one executor for each batch size in use.
//
// Order of use: construct, prepare() every batch size that will be used, then forward and backward.
// The smaller batch at the end of an epoch has its own executor; no batch is padded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/arrays.hpp"
#include "kernels/device.hpp"
#include "kernels/dropout.hpp"
#include "net/executor.hpp"
#include "net/graph.hpp"
#include "net/parameters.hpp"

namespace dp::net {

// Called by backward() when a tensor's gradient is final. `tensor` is an index into
// Parameters::tensors(). The calls for matrices come in the order of the flat buffer, and so do the
// calls for vectors.
using TensorCallback = std::function<void(std::size_t tensor)>;

enum class Mode { training, evaluation };

class Network {
 public:
  // Parameters are initialised from the seed.
  Network(Device& device, Graph graph, DataType activation_type, std::uint64_t seed);
  Network(const Network&) = delete;  // executors refer to the graph
  Network& operator=(const Network&) = delete;

  [[nodiscard]] Parameters& parameters() { return *parameters_; }
  [[nodiscard]] std::size_t classes() const { return classes_; }
  [[nodiscard]] const ImageShape& image() const { return graph_.image(); }
  // A batch as forward() reads it: NHWC fp32.
  [[nodiscard]] TensorDesc images_desc(std::size_t batch) const {
    return TensorDesc::nhwc(graph_.images_shape(batch));
  }

  // The step and the images for which layers draw random numbers. Operations read this position
  // when they run, so set it before each step, after the previous step's operations have run.
  // Initially it has the parameters' seed, step 0 and the whole batch.
  [[nodiscard]] StepPosition& position() { return position_[0]; }

  // Call it before prepare(). In training, the trace gets a slice for each layer, with an index
  // into layer_names() as its `id`. Only for a CPU, because a GPU runs layers after they are
  // called.
  void set_trace(TraceTrack* trace) { trace_ = trace; }
  // Call it before prepare(). In training, batch normalisation then uses the images of all ranks,
  // which must pass through the network together. A rank without images calls
  // take_part_without_images() instead of forward and backward.
  void set_gather(RankGather* gather) { gather_ = gather; }
  void take_part_without_images();
  // The names of the model's layers, in the order of execution. The first name stands for the
  // images.
  [[nodiscard]] std::vector<std::string> layer_names() const;

  // Throws OutOfMemory if the activations of a training batch of this size do not fit into the free
  // memory when `processes` processes of the host each need as much. This check is fast. prepare()
  // would fail, too, but only after it has measured algorithms, which takes minutes with large
  // batches. On a GPU this function does nothing; the GPU's own allocation fails instead.
  void check_memory(std::size_t batch, std::size_t processes);
  // The bytes of activations of a training batch of this size, without preparing it. On a GPU,
  // planning measures algorithms, so the number is scaled from a prepared batch. Returns 0 if no
  // batch is prepared.
  [[nodiscard]] std::size_t planned_bytes(std::size_t batch);
  [[nodiscard]] bool is_prepared(std::size_t batch, Mode mode) const {
    return batch == 0 || executors_.contains({batch, mode});
  }
  // Plans a batch size. Do not call it during a step.
  void prepare(std::size_t batch, Mode mode);

  // `images` are laid out as images_desc(N), with N prepared for the mode. Returns the logits,
  // N x classes, fp32.
  [[nodiscard]] TensorView forward(const TensorView& images, Mode mode);
  // The loss writes its gradient with respect to the last forward's logits here.
  [[nodiscard]] const TensorView& logit_gradient() const;
  // Assigns all parameters' gradients. Pass the images of the last forward.
  void backward(const TensorView& images, const TensorCallback& tensor_final);

  [[nodiscard]] std::size_t arena_bytes() const { return arena_bytes_; }
  [[nodiscard]] std::vector<std::string> algorithms() const;

 private:
  // The place of a layer's parameter: in the flat buffers, or in the buffer of frozen parameters or
  // of statistics.
  struct Slot {
    ParameterKind kind;
    std::size_t index;  // into tensors(), frozen() or statistics()
    [[nodiscard]] bool is_trained() const {
      return kind == ParameterKind::matrix || kind == ParameterKind::vector;
    }
  };

  void place_parameters();
  [[nodiscard]] Device::Memory allocate_arena(std::size_t bytes, std::size_t batch);
  [[nodiscard]] std::vector<std::vector<BoundParameter>> bound_parameters(Mode mode);
  [[nodiscard]] Executor& executor(std::size_t batch, Mode mode);

  Device& device_;
  Graph graph_;
  RankGather* gather_ = nullptr;
  DataType activation_type_;
  std::size_t classes_ = 0;
  std::unique_ptr<Parameters> parameters_;
  HostArray<StepPosition> position_;
  std::vector<std::vector<Slot>> slots_;  // per node
  std::map<std::pair<std::size_t, Mode>, std::unique_ptr<Executor>> executors_;
  Device::Memory arena_;
  std::size_t arena_bytes_ = 0;
  Executor* last_ = nullptr;  // ran the last forward in training
  TraceTrack* trace_ = nullptr;
};

}  // namespace dp::net
