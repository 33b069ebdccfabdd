// Finds and opens the libraries; library_handles.cpp uses them.
#include "kernels/cuda/libraries.hpp"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/base/setting_error.hpp"

namespace dp::cuda {

namespace {

constexpr const char* kAdvice =
    "install cuDNN 9 and cuBLAS of CUDA 12 or 13, or set DPTRAIN_CUDA_PREFIX to the folder that "
    "holds them";

std::vector<std::string> folders_like(const std::string& pattern) {
  std::vector<std::string> found;
  glob_t matches{};
  if (glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &matches) == 0) {
    for (std::size_t i = 0; i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
  }
  globfree(&matches);
  return found;
}

// The folders where a library may be. An empty name stands for the loader's own search.
struct Places {
  std::vector<std::string> folders;
  bool has_prefix = false;

  Places() {
    const auto add = [&](const std::string& pattern) {
      for (std::string& folder : folders_like(pattern)) folders.push_back(std::move(folder));
    };
    if (const char* prefix = std::getenv("DPTRAIN_CUDA_PREFIX"); prefix && *prefix != '\0') {
      has_prefix = true;
      const std::string root(prefix);
      add(root + "/lib");
      add(root + "/lib64");
      add(root + "/nvidia/*/lib");
      add(root + "/*/lib");  // the prefix is itself pip's nvidia/ folder
      add(root + "/lib/python3*/site-packages/nvidia/*/lib");
      add(root);
    }
    folders.emplace_back();
    add("/usr/local/cuda/lib64");
    add("/usr/local/cuda/targets/x86_64-linux/lib");
    add("/usr/local/nvidia/lib64");
    add("/usr/lib/x86_64-linux-gnu");
    for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
      if (const char* root = std::getenv(variable); root && *root != '\0') {
        add(std::string(root) + "/lib/python3*/site-packages/nvidia/*/lib");
        add(std::string(root) + "/lib");
      }
    }
    if (const char* home = std::getenv("HOME"); home && *home != '\0') {
      add(std::string(home) + "/.local/lib/python3*/site-packages/nvidia/*/lib");
    }
    for (const char* root :
         {"/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages",
          "/usr/lib/python3/dist-packages", "/opt/*/.venv/lib/python3*/site-packages",
          "/opt/*/lib/python3*/site-packages"}) {
      add(std::string(root) + "/nvidia/*/lib");
    }
  }
};

// Opens the first library with that name. If a file exists but does not open, `reason` says why.
void* open_one(const Places& places, const std::string& name, std::string& reason) {
  for (const std::string& folder : places.folders) {
    const std::string path = folder.empty() ? name : folder + "/" + name;
    if (!folder.empty() && !std::filesystem::exists(path)) continue;
    if (void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL)) return library;
    const char* text = dlerror();
    // Report a broken file, but not that the loader's own search found nothing.
    if (folder.empty() || !reason.empty() || text == nullptr) continue;
    std::string_view why(text);
    if (why.starts_with(path + ": ")) why.remove_prefix(path.size() + 2);
    reason = fmt::format("{} does not open: {}", path, why);
  }
  return nullptr;
}

std::string where(const Places& places) {
  return fmt::format(
      "{}in the dynamic loader's folders, /usr/local/cuda and Python's site-packages",
      places.has_prefix
          ? fmt::format("below DPTRAIN_CUDA_PREFIX={}, ", std::getenv("DPTRAIN_CUDA_PREFIX"))
          : std::string());
}

// Opens the first of `names` that is found.
void* open_any(const Places& places, const std::vector<std::string>& names, const char* what,
               std::string& reason) {
  std::string broken;
  for (const std::string& name : names) {
    if (void* library = open_one(places, name, broken)) return library;
  }
  reason = broken.empty() ? fmt::format("no {} ({}) was found {}; {}", what, names.front(),
                                        where(places), kAdvice)
                          : fmt::format("{}; {}", broken, kAdvice);
  return nullptr;
}

struct Opened {
  CudnnApi cudnn{};
  CublasApi cublas{};
  std::string why_missing;

  Opened() {
    const Places places;
    const int major = CUDART_VERSION / 1000;
    const auto versioned = [&](const std::string& stem) {
      // The functions used are the same in CUDA 12 and 13, so either version will do.
      return std::vector<std::string>{fmt::format("{}.so.{}", stem, major),
                                      fmt::format("{}.so.{}", stem, major == 13 ? 12 : 13)};
    };
    // cuBLAS loads libcublasLt, but its run path does not lead to libcublasLt in every
    // installation. cuDNN loads NVRTC for engines that it compiles while planning. Open both here,
    // because the loader finds a library that is already open by its name. If libcublasLt is
    // missing, opening cuBLAS fails below. If NVRTC is missing, cuDNN chooses other engines.
    std::string ignored;
    const void* unused = open_any(places, versioned("libcublasLt"), "cuBLAS", ignored);
    unused = open_any(places, versioned("libnvrtc"), "NVRTC", ignored);
    static_cast<void>(unused);

    void* cudnn_library = open_any(places, {"libcudnn.so.9"}, "cuDNN 9", why_missing);
    if (cudnn_library == nullptr) return;
    void* cublas_library = open_any(places, versioned("libcublas"), "cuBLAS", why_missing);
    if (cublas_library == nullptr) return;

    const auto load = [&](void* library, auto& pointer, const char* name) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(dlsym(library, name));
      if (pointer == nullptr && why_missing.empty()) {
        why_missing = fmt::format("the library found has no {}; {}", name, kAdvice);
      }
    };
    load(cudnn_library, cudnn.get_version, "cudnnGetVersion");
    load(cudnn_library, cudnn.get_error_string, "cudnnGetErrorString");
    load(cudnn_library, cudnn.get_last_error_string, "cudnnGetLastErrorString");
    load(cudnn_library, cudnn.create, "cudnnCreate");
    load(cudnn_library, cudnn.destroy, "cudnnDestroy");
    load(cudnn_library, cudnn.set_stream, "cudnnSetStream");
    load(cudnn_library, cudnn.create_descriptor, "cudnnBackendCreateDescriptor");
    load(cudnn_library, cudnn.destroy_descriptor, "cudnnBackendDestroyDescriptor");
    load(cudnn_library, cudnn.set_attribute, "cudnnBackendSetAttribute");
    load(cudnn_library, cudnn.get_attribute, "cudnnBackendGetAttribute");
    load(cudnn_library, cudnn.finalize, "cudnnBackendFinalize");
    load(cudnn_library, cudnn.execute, "cudnnBackendExecute");

    load(cublas_library, cublas.get_property, "cublasGetProperty");
    load(cublas_library, cublas.get_status_string, "cublasGetStatusString");
    load(cublas_library, cublas.create, "cublasCreate_v2");
    load(cublas_library, cublas.destroy, "cublasDestroy_v2");
    load(cublas_library, cublas.set_stream, "cublasSetStream_v2");
    load(cublas_library, cublas.set_workspace, "cublasSetWorkspace_v2");
    load(cublas_library, cublas.set_math_mode, "cublasSetMathMode");
    load(cublas_library, cublas.set_atomics_mode, "cublasSetAtomicsMode");
    load(cublas_library, cublas.sgemm, "cublasSgemm_v2");
  }
};

// The libraries stay open until the process ends, because their own threads and exit handlers need
// them.
const Opened& opened() {
  static const Opened instance;
  return instance;
}

const Opened& opened_or_throw() {
  if (!opened().why_missing.empty()) {
    throw SettingError(Setting{"device"}, "cuda", opened().why_missing, ErrorKind::device);
  }
  return opened();
}

}  // namespace

const CudnnApi& cudnn_api() { return opened_or_throw().cudnn; }
const CublasApi& cublas_api() { return opened_or_throw().cublas; }

std::string Libraries::why_missing() { return opened().why_missing; }

}  // namespace dp::cuda
