// CIFAR-10 and CIFAR-100 in their official binary layout (Krizhevsky 2009).
//
// A file is a sequence of records without a header. CIFAR-10: 1 byte label, 3,072 bytes of pixels;
// data_batch_1.bin to data_batch_5.bin and test_batch.bin with 10,000 records each. CIFAR-100: 1
// byte coarse label, 1 byte fine label (the one that is learnt), 3,072 bytes; train.bin with 50,000
// records and test.bin with 10,000. Shorter files of whole records are read too.
#pragma once

#include "io/dataset.hpp"

namespace dp {

// request.kind is cifar10 or cifar100. All files must be there and have a whole number of records,
// also those that a limit leaves unread. Throws Error(data).
[[nodiscard]] Dataset load_cifar(const DatasetRequest& request);

}  // namespace dp
