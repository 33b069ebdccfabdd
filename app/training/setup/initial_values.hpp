// Initial values that are computed from the training images.
#pragma once

#include "comm/mpi/communicator.hpp"
#include "io/images/image_source.hpp"
#include "kernels/device.hpp"
#include "net/network.hpp"

namespace dp {

// Collective. Sets the weights of whitening convolutions (net/whitening.hpp) from the first 5,000
// images as they are normalised in training, without augmentation. All ranks throw the same
// AgreedError if an image cannot be read.
void initialise_from_data(const ImageSource& images, Communicator& comm, Device& device,
                          net::Network& network);

}  // namespace dp
