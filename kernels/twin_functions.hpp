// The operations in kernels/ as each backend declares them: the same functions, taking the
// backend's device. The operation headers document them. cpu/twins.hpp and cuda/twins.hpp include
// this file inside their namespaces, after the operation headers; TwinDevice is then the backend's
// device.

[[nodiscard]] std::unique_ptr<BatchNorm> make_batch_norm(TwinDevice& device,
                                                         const BatchNormDesc& desc);

[[nodiscard]] std::unique_ptr<ChannelBias> make_channel_bias(TwinDevice& device,
                                                             const TensorDesc& y);
void dropout(TwinDevice& device, const TensorView& x, const DropoutRule& rule,
             const StepPosition* position, const TensorView& y);
void gelu_forward(TwinDevice& device, const TensorView& x, const TensorView& y);
void gelu_backward(TwinDevice& device, const TensorView& x, const TensorView& dy,
                   const TensorView& dx);

void relu_forward(TwinDevice& device, const TensorView& x, const TensorView& y);
void relu_backward(TwinDevice& device, const TensorView& y, const TensorView& dy,
                   const TensorView& dx);
void scale(TwinDevice& device, const TensorView& x, float factor, const TensorView& y);
void add(TwinDevice& device, const TensorView& a, const TensorView& b, const TensorView& y);
void copy(TwinDevice& device, const TensorView& x, const TensorView& y);

void average_pool_forward(TwinDevice& device, const TensorView& x, const Pooling& pooling,
                          const TensorView& y);
void average_pool_backward(TwinDevice& device, const TensorView& dy, const Pooling& pooling,
                           const TensorView& dx);
void global_average_pool_forward(TwinDevice& device, const TensorView& x, const TensorView& y);
void global_average_pool_backward(TwinDevice& device, const TensorView& dy, const TensorView& dx);

void max_pool_forward(TwinDevice& device, const TensorView& x, const Pooling& pooling,
                      const TensorView& y, std::uint8_t* places);
void max_pool_backward(TwinDevice& device, const TensorView& dy, const std::uint8_t* places,
                       const Pooling& pooling, const TensorView& dx);

void concatenate(TwinDevice& device, std::span<const TensorView> parts, const TensorView& y);
void split(TwinDevice& device, const TensorView& y, std::span<const TensorView> parts);

void pad_shortcut_forward(TwinDevice& device, const TensorView& x, std::size_t stride,
                          const TensorView& y);
void pad_shortcut_backward(TwinDevice& device, const TensorView& dy, std::size_t stride,
                           const TensorView& dx);

void linear_forward(TwinDevice& device, const TensorView& x, const float* weights,
                    const float* bias, const TensorView& y);
void linear_backward_data(TwinDevice& device, const TensorView& dy, const float* weights,
                          const TensorView& dx);
void linear_backward_weights(TwinDevice& device, const TensorView& x, const TensorView& dy,
                             float* weight_gradient, float* bias_gradient);

void softmax_cross_entropy(TwinDevice& device, const TensorView& logits, const std::int32_t* labels,
                           float smoothing, double divisor, const TensorView& d_logits,
                           LossSums* sums);

void sgd_update(TwinDevice& device, std::span<float> parameters, std::span<const float> gradients,
                std::span<float> velocity, const SgdStep* step, const double* squares);
void sum_of_squares(TwinDevice& device, std::span<const float> values, double* sum);
void adam_update(TwinDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> mean, std::span<float> square, const AdamStep* step,
                 const double* squares);
void lars_update(TwinDevice& device, std::span<float> parameters, std::span<const float> gradients,
                 std::span<float> velocity, const LarsStep* step, const LarsNorms* norms,
                 const double* squares);
void muon_direction(TwinDevice& device, std::span<const float> gradients, std::span<float> velocity,
                    std::span<float> x, const MuonStep* step, const double* squares);
void muon_normalise(TwinDevice& device, std::span<float> x, const double* squares);
void muon_orthogonalise(TwinDevice& device, std::span<float> x, std::size_t rows,
                        std::size_t columns, std::span<float> workspace);
void muon_apply(TwinDevice& device, std::span<float> parameters, std::span<const float> x,
                std::size_t rows, const MuonStep* step, const double* squares);

void add_values(TwinDevice& device, std::span<const float> x, std::span<float> y, float factor);
void blend_values(TwinDevice& device, std::span<const float> x, std::span<float> y, float weight);
void subtract_from_values(TwinDevice& device, std::span<const float> x, std::span<float> y,
                          float weight);
void swap_values(TwinDevice& device, std::span<float> x, std::span<float> y);
