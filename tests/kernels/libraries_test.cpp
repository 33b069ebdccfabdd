// Tests the installed cuDNN and cuBLAS: they open, and report their versions. Needs no GPU.
#include "kernels/cuda/libraries.hpp"

#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/base/error.hpp"
#include "kernels/cuda/library_check.hpp"

namespace dp::cuda {
namespace {

TEST(Libraries, OpenAndTellTheirVersions) {
  if (const std::string why = Libraries::why_missing(); !why.empty()) {
    EXPECT_NE(why.find("DPTRAIN_CUDA_PREFIX"), std::string::npos) << why;
    EXPECT_THROW(static_cast<void>(cudnn_api()), Error);
    EXPECT_THROW(static_cast<void>(cublas_api()), Error);
    GTEST_SKIP() << why;
  }
  const std::string versions = Libraries::versions();
  std::printf("%s\n", versions.c_str());
  unsigned parts[6] = {};
  ASSERT_EQ(std::sscanf(versions.c_str(), "cuDNN %u.%u.%u, cuBLAS %u.%u.%u", &parts[0], &parts[1],
                        &parts[2], &parts[3], &parts[4], &parts[5]),
            6)
      << versions;
  EXPECT_EQ(parts[0], 9u);
  EXPECT_GE(parts[3], 12u);
}

// The first call of the backend API opens cuDNN's inner libraries, so a broken installation fails
// here.
TEST(Libraries, CudnnFindsItsOwnParts) {
  if (const std::string why = Libraries::why_missing(); !why.empty()) GTEST_SKIP() << why;
  cudnnBackendDescriptor_t descriptor = nullptr;
  ASSERT_EQ(cudnn_api().create_descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &descriptor),
            CUDNN_STATUS_SUCCESS);
  // Nothing has been set.
  EXPECT_NE(cudnn_api().finalize(descriptor), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnn_api().destroy_descriptor(descriptor), CUDNN_STATUS_SUCCESS);
}

// The scan over batch sizes ends when memory runs out, whoever detects it.
TEST(Libraries, TheirLackOfMemoryIsOurs) {
  if (const std::string why = Libraries::why_missing(); !why.empty()) GTEST_SKIP() << why;
  EXPECT_THROW(DP_CHECK_CUDNN(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED), OutOfMemory);
  EXPECT_THROW(DP_CHECK_CUBLAS(CUBLAS_STATUS_ALLOC_FAILED), OutOfMemory);
  try {
    DP_CHECK_CUBLAS(CUBLAS_STATUS_INVALID_VALUE);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const OutOfMemory& error) {
    ADD_FAILURE() << error.what();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
  }
}

}  // namespace
}  // namespace dp::cuda
