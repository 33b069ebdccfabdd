/* Minimises a sum of squares on all ranks together, with compressed gradients.
 *
 *     cc example.c $(pkg-config --cflags --libs dptrain_comm) -o example
 *     mpirun -np 4 ./example
 */
#include <dptrain_comm.h>
#include <stdio.h>

enum { ROWS = 100, COLUMNS = 500, VALUES = ROWS * COLUMNS, STEPS = 60 };

/* Ends all ranks if a function of the library has failed. */
static void check(int result) {
  if (result != DPTRAIN_COMM_OK) dptrain_comm_abort(result, dptrain_comm_last_error());
}

int main(void) {
  static float weights[VALUES]; /* always the same on all ranks */
  const dptrain_comm_slot slots[] = {{"weights", ROWS, COLUMNS, 0, 0}};
  dptrain_comm_options options;
  dptrain_comm* exchange = NULL;

  check(dptrain_comm_init());
  dptrain_comm_defaults(&options);
  options.compress = "q4"; /* as for dptrain --compress */
  check(dptrain_comm_create(slots, 1, &options, &exchange));

  /* Each rank has its own target; the mean of the targets is 1. */
  const float wanted = (float)(2 * dptrain_comm_rank() + 1) / (float)dptrain_comm_size();
  for (int step = 0; step < STEPS; ++step) {
    int all_finite = 0;
    check(dptrain_comm_begin_step(exchange, (double)step / STEPS));
    float* gradient = dptrain_comm_values(exchange, 0);
    for (int i = 0; i < VALUES; ++i) gradient[i] = weights[i] - wanted;
    check(dptrain_comm_ready(exchange, 0)); /* sent now, while other slots are computed */
    check(dptrain_comm_finish_step(exchange, &all_finite));
    if (!all_finite) continue;
    for (int i = 0; i < VALUES; ++i) weights[i] -= 0.2f * gradient[i] / (float)dptrain_comm_size();
  }
  check(dptrain_comm_compare(exchange, weights, VALUES)); /* fails if some rank has other bits */

  dptrain_comm_statistics statistics;
  statistics.struct_bytes = sizeof statistics;
  check(dptrain_comm_get_statistics(exchange, &statistics));
  if (dptrain_comm_rank() == 0) {
    printf("weights[0] is %.3f and should be 1; a rank sent %.0f bytes a step, and fp32 would be %d\n", weights[0],
           (double)statistics.sent_bytes / STEPS, 4 * VALUES);
  }
  dptrain_comm_destroy(exchange);
  check(dptrain_comm_finalize());
  return 0;
}
