// The fake of cuDNN's backend API: descriptors as sets of attributes, and the few engines of
// fake_engines.hpp.
#include <algorithm>
#include <atomic>

#include "tests/cuda_on_cpu/api.hpp"
#include "tests/cuda_on_cpu/fake_convolution.hpp"
#include "tests/cuda_on_cpu/fake_engines.hpp"
#include "tests/cuda_on_cpu/fake_libraries.hpp"
#include "tests/cuda_on_cpu/launch.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace dp::cuda_on_cpu {

namespace {

// A caller's handle: a place for the descriptor's content.
struct Holder {
  DescriptorPointer descriptor;
};

thread_local std::string last_error;

template <class Body>
cudnnStatus_t at_border(const Body& body) {
  try {
    body();
    return CUDNN_STATUS_SUCCESS;
  } catch (const FakeError& error) {
    last_error = error.text;
    return error.status;
  }
}

FakeDescriptor& content(cudnnBackendDescriptor_t descriptor) {
  demand(descriptor != nullptr, "no descriptor");
  return *static_cast<Holder*>(descriptor)->descriptor;
}

// ---- engines ------------------------------------------------------------------------------------

// An attribute that the library itself writes.
template <class T>
FakeAttribute made(cudnnBackendAttributeType_t type, const std::vector<T>& values) {
  FakeAttribute attribute{type, std::vector<std::byte>(values.size() * sizeof(T)), {}};
  if (!values.empty()) {
    std::memcpy(attribute.bytes.data(), values.data(), attribute.bytes.size());
  }
  return attribute;
}
DescriptorPointer make_final(cudnnBackendDescriptorType_t type) {
  auto descriptor = std::make_shared<FakeDescriptor>();
  descriptor->type = type;
  descriptor->is_final = true;
  return descriptor;
}

DescriptorPointer make_configuration(const Configuration& c, const DescriptorPointer& graph) {
  const Engine& e = engine(c.engine);
  const auto described = make_final(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  auto& of_engine = described->attributes;
  of_engine[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = made<std::int64_t>(CUDNN_TYPE_INT64, {c.engine});
  of_engine[CUDNN_ATTR_ENGINE_NUMERICAL_NOTE] = made(CUDNN_TYPE_NUMERICAL_NOTE, e.numerical);
  of_engine[CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE] = made(CUDNN_TYPE_BEHAVIOR_NOTE, e.behaviour);
  of_engine[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {graph}};

  FakeAttribute knobs{CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {}};
  if (c.tile >= 0) {
    const auto knob = make_final(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob->attributes[CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE] =
        made<cudnnBackendKnobType_t>(CUDNN_TYPE_KNOB_TYPE, {CUDNN_KNOB_TYPE_TILE_SIZE});
    knob->attributes[CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE] =
        made<std::int64_t>(CUDNN_TYPE_INT64, {c.tile});
    knobs.parts.push_back(knob);
  }
  const auto configuration = make_final(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configuration->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {
      CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {described}};
  configuration->attributes[CUDNN_ATTR_ENGINECFG_KNOB_CHOICES] = std::move(knobs);
  return configuration;
}

FakeConvolution convolution_of(const FakeDescriptor& graph) {
  const FakeAttribute& operations = graph.attribute(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  demand(operations.parts.size() == 1, "this fake runs one operation");
  return FakeConvolution(*operations.parts.front());
}

// Real engines want one type, and bf16 channels in eights (or they are slow).
bool is_offered(const FakeConvolution& c) {
  const bool is_one_type = c.x.type == c.w.type && c.w.type == c.y.type;
  const bool is_even = c.x.dims[1] % 8 == 0 && c.y.dims[1] % 8 == 0;
  return is_one_type && (c.x.type == DataType::f32 || is_even);
}

struct Plan {
  const Engine& way;
  FakeConvolution convolution;

  explicit Plan(const FakeDescriptor& plan)
      : way(engine(engine_descriptor(plan)->one<std::int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX))),
        convolution(convolution_of(*engine_descriptor(plan)->part(
            CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR))) {}

  static DescriptorPointer engine_descriptor(const FakeDescriptor& plan) {
    return plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
        ->part(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  }
};

// ---- descriptors --------------------------------------------------------------------------------

std::size_t size_of_type(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_INT64:
      return sizeof(std::int64_t);
    case CUDNN_TYPE_DATA_TYPE:
      return sizeof(cudnnDataType_t);
    case CUDNN_TYPE_FLOAT:
      return sizeof(float);
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return sizeof(void*);
    case CUDNN_TYPE_CONVOLUTION_MODE:
      return sizeof(cudnnConvolutionMode_t);
    case CUDNN_TYPE_HEUR_MODE:
      return sizeof(cudnnBackendHeurMode_t);
    default:
      refuse("a type that this fake does not have");
  }
}

// The type under which an attribute must be set.
cudnnBackendAttributeType_t type_of(cudnnBackendAttributeName_t name) {
  switch (name) {
    case CUDNN_ATTR_TENSOR_UNIQUE_ID:
    case CUDNN_ATTR_TENSOR_DIMENSIONS:
    case CUDNN_ATTR_TENSOR_STRIDES:
    case CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT:
    case CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS:
    case CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS:
    case CUDNN_ATTR_CONVOLUTION_POST_PADDINGS:
    case CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES:
    case CUDNN_ATTR_CONVOLUTION_DILATIONS:
    case CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS:
      return CUDNN_TYPE_INT64;
    case CUDNN_ATTR_TENSOR_DATA_TYPE:
    case CUDNN_ATTR_CONVOLUTION_COMP_TYPE:
      return CUDNN_TYPE_DATA_TYPE;
    case CUDNN_ATTR_CONVOLUTION_CONV_MODE:
      return CUDNN_TYPE_CONVOLUTION_MODE;
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA:
    case CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA:
      return CUDNN_TYPE_FLOAT;
    case CUDNN_ATTR_OPERATIONGRAPH_HANDLE:
    case CUDNN_ATTR_EXECUTION_PLAN_HANDLE:
      return CUDNN_TYPE_HANDLE;
    case CUDNN_ATTR_ENGINEHEUR_MODE:
      return CUDNN_TYPE_HEUR_MODE;
    case CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS:
    case CUDNN_ATTR_VARIANT_PACK_WORKSPACE:
      return CUDNN_TYPE_VOID_PTR;
    default:
      return CUDNN_TYPE_BACKEND_DESCRIPTOR;
  }
}

void finalize_content(FakeDescriptor& d) {
  demand(!d.is_final, "finalised twice");
  switch (d.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
      const auto dims = d.list<std::int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
      const auto strides = d.list<std::int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
      demand(dims.size() == strides.size() && dims.size() >= 3, "dimensions without strides");
      demand(std::all_of(dims.begin(), dims.end(), [](std::int64_t n) { return n > 0; }),
             "an empty dimension");
      static_cast<void>(d.one<std::int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID));
      static_cast<void>(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE));
      demand(d.one<std::int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) == 16, "alignment is 16 here");
      break;
    }
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
      // The content is checked by its operation.
      static_cast<void>(d.one<std::int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS));
      break;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      static_cast<void>(FakeConvolution(d));
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      static_cast<void>(convolution_of(d));
      demand(d.one<void*>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE) != nullptr, "a graph needs a handle");
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      const auto graph =
          d.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
      FakeAttribute results{CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, {}};
      for (const Configuration& c :
           configurations(d.one<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE))) {
        if (!is_offered(convolution_of(*graph))) break;
        results.parts.push_back(make_configuration(c, graph));
      }
      d.attributes[CUDNN_ATTR_ENGINEHEUR_RESULTS] = std::move(results);
      break;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      demand(d.one<void*>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) != nullptr, "a plan needs a handle");
      const Plan plan(d);
      if (plan.way.is_refused) refuse("not for this shape", CUDNN_STATUS_NOT_SUPPORTED);
      d.attributes[CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE] =
          made<std::int64_t>(CUDNN_TYPE_INT64, {plan.way.workspace});
      break;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      demand(d.list<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() ==
                 d.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size(),
             "as many pointers as names");
      static_cast<void>(d.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
      break;
    default:
      refuse("a descriptor that only the library makes");
  }
  d.is_final = true;
}

// ---- the functions ------------------------------------------------------------------------------

std::size_t get_version() { return 90000; }
const char* get_error_string(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "success" : "the library was not used as it must be";
}
void get_last_error_string(char* message, std::size_t most) {
  const std::size_t count = std::min(most - 1, last_error.size());
  std::memcpy(message, last_error.data(), count);
  message[count] = '\0';
}
cudnnStatus_t create(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t set_stream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t create_descriptor(cudnnBackendDescriptorType_t type,
                                cudnnBackendDescriptor_t* descriptor) {
  auto* holder = new Holder{std::make_shared<FakeDescriptor>()};
  holder->descriptor->type = type;
  *descriptor = holder;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t destroy_descriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Holder*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t set_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, std::int64_t count,
                            const void* values) {
  return at_border([&] {
    FakeDescriptor& d = content(descriptor);
    demand(!d.is_final, "an attribute is set after finalising");
    demand(type == type_of(name), "an attribute of another type than it has");
    demand(count > 0 && values != nullptr, "no values");
    FakeAttribute attribute{type, {}, {}};
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      const auto* parts = static_cast<const cudnnBackendDescriptor_t*>(values);
      for (std::int64_t i = 0; i < count; ++i) {
        demand(content(parts[i]).is_final, "a part that is not finalised");
        attribute.parts.push_back(static_cast<Holder*>(parts[i])->descriptor);
      }
    } else {
      attribute.bytes.resize(static_cast<std::size_t>(count) * size_of_type(type));
      std::memcpy(attribute.bytes.data(), values, attribute.bytes.size());
    }
    d.attributes[name] = std::move(attribute);
  });
}

cudnnStatus_t get_attribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, std::int64_t most,
                            std::int64_t* count, void* values) {
  return at_border([&] {
    const FakeDescriptor& d = content(descriptor);
    demand(d.is_final, "an attribute is read before finalising");
    const FakeAttribute& attribute = d.attribute(name);
    demand(type == attribute.type, "an attribute of another type than it has");
    const auto room = static_cast<std::size_t>(most);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      auto* places = static_cast<cudnnBackendDescriptor_t*>(values);
      const std::size_t filled = std::min(room, attribute.parts.size());
      for (std::size_t i = 0; i < filled; ++i) {
        demand(content(places[i]).type == attribute.parts[i]->type,
               "a place for another kind of descriptor");
        static_cast<Holder*>(places[i])->descriptor = attribute.parts[i];
      }
      *count = static_cast<std::int64_t>(filled);
      return;
    }
    // Notes are enums of the size of an int.
    const std::size_t size = type == CUDNN_TYPE_INT64 ? sizeof(std::int64_t) : sizeof(int);
    const std::size_t filled = std::min(room, attribute.bytes.size() / size);
    if (filled > 0) std::memcpy(values, attribute.bytes.data(), filled * size);
    *count = static_cast<std::int64_t>(filled);
  });
}

cudnnStatus_t finalize(cudnnBackendDescriptor_t descriptor) {
  return at_border([&] { finalize_content(content(descriptor)); });
}

cudnnStatus_t execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_descriptor,
                      cudnnBackendDescriptor_t pack_descriptor) {
  return at_border([&] {
    const FakeDescriptor &d = content(plan_descriptor), &pack = content(pack_descriptor);
    demand(d.is_final && d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "this is no plan");
    demand(pack.is_final && pack.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
           "these are no pointers");
    demand(d.one<void*>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) == handle, "a plan of another handle");
    const Plan plan(d);
    if (plan.way.fails) refuse("this engine fails", CUDNN_STATUS_EXECUTION_FAILED);

    const auto ids = pack.list<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const auto pointer = [&](const FakeTensor& t) {
      const auto it = std::find(ids.begin(), ids.end(), t.id);
      demand(it != ids.end(), "a tensor without a pointer");
      void* found = pointers[static_cast<std::size_t>(it - ids.begin())];
      demand(found != nullptr && reinterpret_cast<std::uintptr_t>(found) % 16 == 0,
             "a pointer that is null or not aligned");
      return found;
    };
    demand(ids.size() == 3, "three tensors");
    const FakeConvolution& c = plan.convolution;
    void *x = pointer(c.x), *w = pointer(c.w), *y = pointer(c.y);
    void* const workspace = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    const auto bytes = static_cast<std::size_t>(plan.way.workspace);
    demand(bytes == 0 || workspace != nullptr, "no workspace");

    static std::atomic<int> runs{0};
    const double noise = plan.way.is_noisy ? 0.01 * (1 + runs++ % 7) : 0.0;
    const bool is_tf32 = plan.way.is_tf32 && c.x.type == DataType::f32;
    const bool crashes = plan.way.crashes;
    const auto work = [=] {
      if (crashes) {
        set_device_fault(cudaErrorIllegalAddress);
        return;
      }
      // An operand stored in the workspace is lost.
      if (bytes > 0) std::memset(workspace, 0xFF, bytes);
      c.run(x, w, y, is_tf32, noise);
    };
    // A plan may have its own kernels, which are loaded when it is executed.
    const cudaError_t code = enqueue(handle->stream, work, &d);
    if (code != cudaSuccess) refuse("the stream refuses", CUDNN_STATUS_EXECUTION_FAILED);
  });
}

}  // namespace

const cuda::CudnnApi& fake_cudnn() {
  static const cuda::CudnnApi api = {.get_version = get_version,
                                     .get_error_string = get_error_string,
                                     .get_last_error_string = get_last_error_string,
                                     .create = create,
                                     .destroy = destroy,
                                     .set_stream = set_stream,
                                     .create_descriptor = create_descriptor,
                                     .destroy_descriptor = destroy_descriptor,
                                     .set_attribute = set_attribute,
                                     .get_attribute = get_attribute,
                                     .finalize = finalize,
                                     .execute = execute};
  return api;
}

}  // namespace dp::cuda_on_cpu
