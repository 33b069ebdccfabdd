// Compares the ranks' arguments of dptrain_comm_create.
#pragma once

#include "comm/capi/arguments.hpp"
#include "comm/capi/dptrain_comm.h"
#include "comm/mpi/communicator.hpp"

namespace dp::capi {

// Collective: throws Error(usage) on all ranks, with the first difference, unless all ranks pass
// the same slots and options. Each rank's arguments must already have passed check() and lay_out().
void agree_on(const Layout& layout, const dptrain_comm_options& given, Communicator& comm);

}  // namespace dp::capi
