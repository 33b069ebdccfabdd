// Muon (kernels/muon.hpp) for the kernels of convolutions, each as a matrix with a row for each
// output channel. If the options say so, Muon also updates the weights of linear layers. All other
// parameters use SGD with options.has_nesterov. As in airbench94_muon.py, kernels are normalised
// before each update and have no weight decay. Linear layers' weights keep their norm and have the
// group's weight decay.
//
// The state is the velocity, as long as the parameters.
#include "kernels/muon.hpp"

#include <algorithm>

#include "net/optimizer.hpp"

namespace dp::net {

namespace {

class Muon final : public Optimizer {
 public:
  Muon(Device& device, Parameters& parameters, const OptimizerOptions& options)
      : Optimizer(device, parameters, options), velocity_(device, parameters.size()) {
    std::size_t largest = 0, workspace = 0;
    for (const Parameter& tensor : parameters.tensors()) {
      if (!is_orthogonalised(tensor)) continue;
      largest = std::max(largest, tensor.elements);
      workspace = std::max(workspace, muon_workspace(rows_of(tensor), columns_of(tensor)));
    }
    direction_ = DeviceArray(device, largest);
    workspace_ = DeviceArray(device, workspace);
    use_one_group();
  }

  void list_state(StateVisitor& visitor) override {
    visitor.values("optimizer/velocity", velocity_.values(), StateShare::replicated,
                   StatePlace::device);
  }

 private:
  // Sums of squares that the update of a matrix needs.
  struct Norms {
    double direction = 0.0, parameters = 0.0;
  };

  [[nodiscard]] static std::size_t rows_of(const Parameter& tensor) { return tensor.shape[0]; }
  [[nodiscard]] static std::size_t columns_of(const Parameter& tensor) {
    return tensor.elements / tensor.shape[0];
  }
  [[nodiscard]] static bool is_kernel(const Parameter& tensor) {
    return tensor.shape.size() == 4 && !tensor.is_linear;
  }
  [[nodiscard]] bool is_orthogonalised(const Parameter& tensor) const {
    return is_kernel(tensor) || (options_.muon_has_linear && tensor.kind == ParameterKind::matrix);
  }

  // Each matrix is its own slice. Neighbouring tensors of one group that Muon does not update form
  // one slice.
  std::vector<Slice> slices_of(const std::vector<ParameterGroup>& groups) override {
    std::vector<Slice> slices;
    for (Slice& slice : tensors_of(groups)) {
      if (!is_orthogonalised(*slice.tensor)) {
        slice.tensor = nullptr;
        if (!slices.empty() && slices.back().tensor == nullptr &&
            slices.back().factors == slice.factors) {
          slices.back().elements += slice.elements;
          continue;
        }
      }
      slices.push_back(slice);
    }
    return slices;
  }

  void prepare() override {
    sgd_steps_ = HostArray<SgdStep>(device_, slices_.size());
    muon_steps_ = HostArray<MuonStep>(device_, slices_.size());
    norms_ = HostArray<Norms>(device_, slices_.size());
  }

  void set_numbers(double learning_rate) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const GroupFactors& factors = slices_[i].factors;
      const double rate = learning_rate * factors.learning_rate;
      sgd_steps_[i] = {.learning_rate = static_cast<float>(rate),
                       .momentum = scaled(options_.momentum, factors.momentum),
                       .weight_decay = scaled(options_.weight_decay, factors.weight_decay),
                       .has_nesterov = options_.has_nesterov,
                       .clip_norm = options_.clip_norm};
      muon_steps_[i] = {.learning_rate = scaled(rate, options_.muon_rate_factor),
                        .momentum = options_.muon_momentum,
                        .weight_decay = scaled(options_.weight_decay, factors.weight_decay),
                        .has_nesterov = true,
                        .clip_norm = options_.clip_norm};
    }
  }

  void enqueue(const double* squares) override {
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const Slice& slice = slices_[i];
      if (slice.tensor == nullptr) {
        sgd_update(device_, values(slice), gradients(slice), part(velocity_, slice),
                   sgd_steps_.at(i), squares);
      } else {
        enqueue_matrix(i, squares);
      }
    }
  }

  void enqueue_matrix(std::size_t i, const double* squares) {
    const Slice& slice = slices_[i];
    const std::size_t rows = rows_of(*slice.tensor), columns = columns_of(*slice.tensor);
    const std::span<float> x = direction_.values().first(slice.elements);
    muon_direction(device_, gradients(slice), part(velocity_, slice), x, muon_steps_.at(i),
                   squares);
    sum_of_squares(device_, x, &norms_[i].direction);
    muon_normalise(device_, x, &norms_[i].direction);
    muon_orthogonalise(device_, x, rows, columns, workspace_.values());
    const bool normalises = is_kernel(*slice.tensor);
    if (normalises) sum_of_squares(device_, values(slice), &norms_[i].parameters);
    muon_apply(device_, values(slice), x, rows, muon_steps_.at(i),
               normalises ? &norms_[i].parameters : nullptr);
  }

  DeviceArray velocity_;
  DeviceArray direction_, workspace_;
  HostArray<SgdStep> sgd_steps_;
  HostArray<MuonStep> muon_steps_;
  HostArray<Norms> norms_;
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(Device& device, Parameters& parameters,
                                     const OptimizerOptions& options) {
  return std::make_unique<Muon>(device, parameters, options);
}

}  // namespace dp::net
