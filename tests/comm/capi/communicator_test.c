/* dptrain_comm_init_with: a program that has started MPI itself gives a communicator of some of its
 * ranks.
 *
 * Without arguments even and odd ranks have an exchange each, while the program uses MPI, too. With
 * the argument "single" MPI's thread level is too low, and with "alone" another launcher counts
 * more processes than MPI. */
#define _POSIX_C_SOURCE 200112L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/capi/dptrain_comm.h"

#define CHECK(holds)                                                      \
  do {                                                                    \
    if (!(holds)) {                                                       \
      fprintf(stderr, "line %d: %s (last error: %s)\n", __LINE__, #holds, \
              dptrain_comm_last_error());                                 \
      MPI_Abort(MPI_COMM_WORLD, 1);                                       \
    }                                                                     \
  } while (0)

enum { VALUES = 5000, STEPS = 3 };

/* Whether init_with takes the communicator. What it refuses can be tried again. */
static int is_refused(MPI_Comm comm, const char* sentence) {
  if (dptrain_comm_init_with(MPI_Comm_c2f(comm)) != DPTRAIN_COMM_USAGE) return 0;
  CHECK(strstr(dptrain_comm_last_error(), sentence) != NULL);
  CHECK(dptrain_comm_rank() == -1);
  return 1;
}

/* WORLD_SIZE as torchrun sets it, and what mpiexec of another MPI and srun set. */
static int run_alone(void) {
  static const char* const kLaunchers[][2] = {{"WORLD_SIZE", "RANK"},
                                              {"PMI_SIZE", "PMI_RANK"},
                                              {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
                                              {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}};
  int level;
  MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
  unsetenv("OMPI_COMM_WORLD_SIZE"); /* as without mpirun */
  for (int i = 0; i < 4; ++i) {
    setenv(kLaunchers[i][0], "2", 1);
    setenv(kLaunchers[i][1], "0", 1);
    CHECK(is_refused(MPI_COMM_WORLD, kLaunchers[i][0]));
    CHECK(is_refused(MPI_COMM_SELF, "2 processes were started, but MPI has 1 rank"));
    setenv(kLaunchers[i][0], "1", 1);
    CHECK(dptrain_comm_init_with(MPI_Comm_c2f(MPI_COMM_WORLD)) == DPTRAIN_COMM_OK);
    CHECK(dptrain_comm_finalize() == DPTRAIN_COMM_OK);
    unsetenv(kLaunchers[i][0]);
    unsetenv(kLaunchers[i][1]);
  }
  MPI_Finalize();
  return 0;
}

int main(int argc, char** argv) {
  const dptrain_comm_slot slot = {"weights", 50, VALUES / 50, 0, 0};
  const int is_single = argc > 1 && strcmp(argv[1], "single") == 0;
  int level, rank, is_ended;
  MPI_Comm half;
  dptrain_comm_options options;
  dptrain_comm* exchange = NULL;

  CHECK(dptrain_comm_init_with(0) == DPTRAIN_COMM_USAGE);
  CHECK(strcmp(dptrain_comm_last_error(), "MPI is not running; dptrain_comm_init starts it") == 0);
  if (argc > 1 && strcmp(argv[1], "alone") == 0) return run_alone();
  MPI_Init_thread(&argc, &argv, is_single ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE, &level);
  if (is_single) {
    CHECK(dptrain_comm_init_with(MPI_Comm_c2f(MPI_COMM_WORLD)) == DPTRAIN_COMM_USAGE);
    CHECK(strstr(dptrain_comm_last_error(), "dptrain_comm needs MPI_THREAD_SERIALIZED") != NULL);
    CHECK(dptrain_comm_rank() == -1);
    MPI_Finalize();
    return 0;
  }
  CHECK(level == MPI_THREAD_MULTIPLE);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  int size_of_half;
  MPI_Comm_size(half, &size_of_half);
  /* A launcher's numbers fit if they are those of all ranks, or of this group. */
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "8", 1);
  CHECK(is_refused(half, "WORLD_SIZE=8 (set by torchrun): 8 processes were started, but MPI has"));
  /* Each of two processes has started the two ranks of a group: all hear what one of them sees. */
  setenv("WORLD_SIZE", "2", 1);
  CHECK(is_refused(half, "RANK=0 (set by torchrun) does not fit rank "));
  char number[16];
  snprintf(number, sizeof number, "%d", rank % 2 == 0 ? rank / 2 : rank);
  setenv("RANK", number, 1);
  setenv("WORLD_SIZE", rank % 2 == 0 ? "2" : "4", 1);
  CHECK(dptrain_comm_init_with(MPI_Comm_c2f(half)) == DPTRAIN_COMM_OK);
  CHECK(dptrain_comm_rank() == rank / 2 && dptrain_comm_size() == size_of_half);
  MPI_Comm_free(&half); /* the library has a communicator of its own */

  dptrain_comm_defaults(&options);
  options.compress = "none";
  options.link_bit_per_s = 1e9;
  CHECK(dptrain_comm_create(&slot, 1, &options, &exchange) == DPTRAIN_COMM_OK);
  for (int step = 0; step < STEPS; ++step) {
    float* values = dptrain_comm_values(exchange, 0);
    int all = 0;
    const int one = 1;
    float expected = 0;
    CHECK(dptrain_comm_begin_step(exchange, -1) == DPTRAIN_COMM_OK);
    for (int i = 0; i < VALUES; ++i) values[i] = (float)(rank + i % 5);
    CHECK(dptrain_comm_ready(exchange, 0) == DPTRAIN_COMM_OK);
    /* The program's own messages, while the bucket is under way. */
    MPI_Allreduce(&one, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(dptrain_comm_finish_step(exchange, NULL) == DPTRAIN_COMM_OK);
    for (int r = rank % 2; r < all; r += 2) expected += (float)r;
    for (int i = 0; i < VALUES; ++i) CHECK(values[i] == expected + (float)(size_of_half * (i % 5)));
  }
  dptrain_comm_destroy(exchange);
  CHECK(dptrain_comm_finalize() == DPTRAIN_COMM_OK);
  MPI_Finalized(&is_ended); /* the program has started MPI, so it ends it */
  CHECK(!is_ended);
  MPI_Finalize();
  return 0;
}
