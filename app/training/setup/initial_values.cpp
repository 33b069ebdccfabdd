#include "app/training/setup/initial_values.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "app/process/option_names.hpp"
#include "app/process/rank_main.hpp"
#include "io/images/augment.hpp"
#include "net/whitening.hpp"

namespace dp {

namespace {

constexpr std::size_t kMostImages = 5000;

}  // namespace

void initialise_from_data(const ImageSource& images, Communicator& comm, Device& device,
                          net::Network& network) {
  net::Parameters& parameters = network.parameters();
  for (const net::Parameter& tensor : parameters.frozen()) {
    if (tensor.init != net::Init::whitening) continue;
    std::vector<float> values(tensor.elements);
    // Rank 0 computes the values for all ranks, because another processor may round differently.
    together(comm, kDptrainNames, [&] {
      if (comm.rank() != 0) return;
      const Normalizer normalizer(images.shape(), images.normalization());
      std::vector<std::uint8_t> scratch;
      const auto read = [&](std::size_t index, std::span<float> nhwc) {
        const ImageSource::Image image = images.read(index, {}, scratch);
        normalizer.apply(image.bytes, image.rest, nhwc);
      };
      values = net::whitening_weights(
          tensor,
          {.shape = images.shape(), .count = std::min(kMostImages, images.count()), .read = read});
    });
    std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    comm.broadcast(bytes);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    std::vector<float> all = to_host(device, parameters.frozen_values());
    net::Parameters::import_torch(tensor, values, all);
    device.upload(parameters.frozen_values().data(), all.data(), all.size() * sizeof(float));
  }
}

}  // namespace dp
