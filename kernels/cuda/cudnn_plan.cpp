// Planning with cuDNN's backend API. A convolution is described as an operation graph, and the
// heuristics are queried for engine configurations (mode A, then the fallbacks). A configuration
// becomes a "way" of ConvPlanner if its numerical notes promise the same bits every time and enough
// precision. The ways keep cuDNN's order, without duplicates. build() turns a way into a plan. If
// cuDNN refuses, or the plan needs too much workspace, build() keeps the reason.
#include "kernels/cuda/cudnn_plan.hpp"

#include <algorithm>
#include <array>

#include "kernels/base/error.hpp"

namespace dp::cuda {

namespace {

// Ids of the tensors. They connect each tensor of the operation graph with its pointer in a run.
constexpr std::int64_t kX = 1, kW = 2, kY = 3;

// The heuristics have never named more configurations than this.
constexpr std::size_t kMostConfigurations = 64;

std::int64_t dim(std::size_t value) { return checked_cast<std::int64_t>(value); }

cudnnDataType_t cudnn_type(DataType type) {
  return type == DataType::f32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
}

// Dimensions in cuDNN's order N, C, H, W with channels last in memory. A filter is a tensor of K
// images of R x S pixels.
Descriptor describe_tensor(std::int64_t id, const Shape& s, DataType type) {
  const std::array<std::int64_t, 4> dims = {dim(s.n), dim(s.c), dim(s.h), dim(s.w)};
  const std::array<std::int64_t, 4> strides = {dim(s.pixels() * s.c), 1, dim(s.w * s.c), dim(s.c)};
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, cudnn_type(type));
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(dims));
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides));
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
  tensor.finalize();
  return tensor;
}

Descriptor describe_convolution(const ConvProblem& p) {
  const auto both = [](Extent value) {
    return std::array<std::int64_t, 2>{dim(value.h), dim(value.w)};
  };
  const auto padding = both(p.padding), stride = both(p.stride), dilation = both(1);
  const auto ints = CUDNN_TYPE_INT64;
  Descriptor c(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  c.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, ints, std::int64_t{2});
  c.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  c.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  c.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, ints, std::span<const std::int64_t>(padding));
  c.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, ints, std::span<const std::int64_t>(padding));
  c.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, ints, std::span<const std::int64_t>(stride));
  c.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, ints, std::span<const std::int64_t>(dilation));
  c.finalize();
  return c;
}

// cuDNN has three names for every attribute of a convolution, one for each direction.
struct OperationNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t convolution, x, w, y, alpha, beta;
};
OperationNames names_of(ConvDirection direction) {
  switch (direction) {
    case ConvDirection::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case ConvDirection::backward_weights:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
    case ConvDirection::forward:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
}

Descriptor engine_of(const Descriptor& configuration) {
  auto engines = configuration.get_descriptors(CUDNN_ATTR_ENGINECFG_ENGINE,
                                               CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  DP_ASSERT(engines.size() == 1, "an engine configuration of cuDNN has {} engines instead of 1",
            engines.size());
  return std::move(engines.front());
}

template <class Note>
bool has(const std::vector<Note>& notes, Note note) {
  return std::find(notes.begin(), notes.end(), note) != notes.end();
}

std::string name_configuration(const Descriptor& configuration, const Descriptor& engine,
                               bool is_winograd) {
  std::string name = fmt::format(
      "engine {}{}", engine.get<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64),
      is_winograd ? " winograd" : "");
  std::vector<std::pair<int, std::int64_t>> knobs;
  for (const Descriptor& choice : configuration.get_descriptors(
           CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR,
           CUDNN_KNOB_TYPE_COUNTS)) {
    knobs.emplace_back(
        choice.get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE),
        choice.get<std::int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64));
  }
  std::sort(knobs.begin(), knobs.end());
  for (const auto& [type, value] : knobs) name += fmt::format(" {}={}", type, value);
  return name;
}

// Whether an engine gives the same bits every time and the requested precision.
bool is_acceptable(const std::vector<cudnnBackendNumericalNote_t>& notes, const ConvProblem& p) {
  if (has(notes, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
  if (has(notes, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) return false;
  // Transforms of large Winograd tiles lose too many bits by cancellation.
  if (has(notes, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13)) return false;
  const bool is_fp32 = p.x_type == DataType::f32 && p.w_type == DataType::f32;
  if (!is_fp32) return !has(notes, CUDNN_NUMERICAL_NOTE_WINOGRAD);
  // Tensor cores read fp32 operands as TF32, so fp32 needs engines without them unless TF32 is
  // allowed.
  return p.allows_tf32 || (!has(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) &&
                           !has(notes, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS));
}

}  // namespace

const char* name_of(ConvDirection direction) {
  return direction == ConvDirection::forward         ? "forward"
         : direction == ConvDirection::backward_data ? "data"
                                                     : "weights";
}

std::string to_string(const ConvProblem& p) {
  return fmt::format("{}x{} stride {} convolution of {}x{}x{}x{} {} -> {} channels {}, {}",
                     p.kernel.h, p.kernel.w, p.stride, p.x.n, p.x.h, p.x.w, p.x.c,
                     dp::name_of(p.x_type), p.y.c, dp::name_of(p.y_type), name_of(p.direction));
}

// ---- running ------------------------------------------------------------------------------------

void ConvPointers::set(void* x, void* w, void* y, void* workspace) {
  void* const wanted[] = {x, w, y, workspace};
  if (pack_ && std::equal(wanted, wanted + 4, now_)) return;
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const std::array<std::int64_t, 3> ids = {kX, kW, kY};
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
           std::span<const std::int64_t>(ids));
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           std::span<void* const>(wanted, 3));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  pack.finalize();
  pack_ = std::move(pack);
  std::copy(wanted, wanted + 4, now_);
}

void CudnnPlan::run(cudnnHandle_t handle, const ConvPointers& pointers) const {
  DP_CHECK_CUDNN(cudnn_api().execute(handle, plan_.get(), pointers.get()));
}

// ---- planning -----------------------------------------------------------------------------------

ConvPlanner::ConvPlanner(const CudnnTarget& target, const ConvProblem& problem)
    : target_(target), problem_(problem) {
  describe_operation();
  if (!graph_) return;
  ask(CUDNN_HEUR_MODE_A);
  ask(CUDNN_HEUR_MODE_FALLBACK);
  if (problem.x_type == DataType::bf16) prefer_tensor_cores();
}

void ConvPlanner::describe_operation() {
  const ConvProblem& p = problem_;
  auto made = std::make_shared<ConvGraph>();
  made->x = describe_tensor(kX, p.x, p.x_type);
  made->w = describe_tensor(kW, {p.y.c, p.kernel.h, p.kernel.w, p.x.c}, p.w_type);
  made->y = describe_tensor(kY, p.y, p.y_type);
  made->convolution = describe_convolution(p);

  const OperationNames names = names_of(p.direction);
  made->operation = Descriptor(names.type);
  made->operation.set(names.convolution, made->convolution);
  made->operation.set(names.x, made->x);
  made->operation.set(names.w, made->w);
  made->operation.set(names.y, made->y);
  made->operation.set(names.alpha, CUDNN_TYPE_FLOAT, 1.0f);
  made->operation.set(names.beta, CUDNN_TYPE_FLOAT, 0.0f);
  made->operation.finalize();

  made->graph = Descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  made->graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, made->operation);
  if (target_.handle != nullptr) {
    made->graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, target_.handle);
  }
  if (made->graph.try_finalize() == CUDNN_STATUS_SUCCESS) {
    graph_ = std::move(made);
  } else {
    last_refusal_ = last_cudnn_message();
  }
}

void ConvPlanner::ask(cudnnBackendHeurMode_t mode) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_->graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (target_.properties != nullptr) {
    heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   target_.properties);
  }
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) {
    last_refusal_ = last_cudnn_message();
    return;
  }
  for (Descriptor& configuration :
       heuristics.get_descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                  kMostConfigurations)) {
    const Descriptor engine = engine_of(configuration);
    const auto notes = engine.get_list<cudnnBackendNumericalNote_t>(
        CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
        CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
    if (!is_acceptable(notes, problem_)) continue;
    const auto behaviours = engine.get_list<cudnnBackendBehaviorNote_t>(
        CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT);
    std::string name =
        name_configuration(configuration, engine, has(notes, CUDNN_NUMERICAL_NOTE_WINOGRAD));
    const bool is_known =
        std::any_of(ways_.begin(), ways_.end(), [&](const Way& way) { return way.name == name; });
    if (is_known) continue;
    ways_.push_back(
        {.name = std::move(name),
         .is_compiled = has(behaviours, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION),
         .has_tensor_cores = has(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE),
         .configuration = std::make_shared<const Descriptor>(std::move(configuration))});
  }
}

// Moves ways (engine configurations) with tensor cores to the front, because without measurements
// the first way is used. Called for bf16, because tensor cores are then several times faster.
void ConvPlanner::prefer_tensor_cores() {
  std::stable_partition(ways_.begin(), ways_.end(),
                        [](const Way& way) { return way.has_tensor_cores; });
}

std::shared_ptr<const CudnnPlan> ConvPlanner::build(std::size_t i) const {
  const Way& way = ways_[i];
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (target_.handle != nullptr) {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, target_.handle);
  } else {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             target_.properties);
  }
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *way.configuration);
  if (plan.try_finalize() != CUDNN_STATUS_SUCCESS) {
    last_refusal_ = fmt::format("{}: {}", way.name, last_cudnn_message());
    return nullptr;
  }
  const auto workspace =
      plan.get<std::int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64);
  if (static_cast<std::size_t>(workspace) > kMostWorkspaceBytes) {
    last_refusal_ = fmt::format("{}: it needs a workspace of {} MiB", way.name, workspace >> 20);
    return nullptr;
  }
  return std::make_shared<const CudnnPlan>(way.name, std::move(plan), graph_, way.configuration,
                                           static_cast<std::size_t>(workspace));
}

}  // namespace dp::cuda
