#include "kernels/codecs/cuda_codecs.hpp"

#include <type_traits>

#include "kernels/codecs/codec_rows.hpp"
#include "kernels/codecs/cuda_driver.cuh"
#include "kernels/codecs/cuda_ecq.hpp"

namespace dp::cuda {
namespace {

template <class Row>
std::unique_ptr<Codec> make_of_row(const CodecSpec& spec, CudaDevice& device) {
  if constexpr (std::is_same_v<typename Row::HostCodec, HostEcq>) {
    return make_ecq(spec, device);
  } else if constexpr (Row::kOnGpu) {
    return std::make_unique<CudaCodec<typename Row::Format>>(spec, device);
  } else {
    return nullptr;
  }
}

}  // namespace

std::unique_ptr<Codec> make_codec(const CodecSpec& spec, CudaDevice& device) {
  std::unique_ptr<Codec> made;
  const bool is_known = with_codec_row(
      spec.name, [&]<class Row>(const Row&) { made = make_of_row<Row>(spec, device); });
  require(is_known, "unknown codec name");
  return made;
}

}  // namespace dp::cuda
