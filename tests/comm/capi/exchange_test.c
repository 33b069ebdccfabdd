/* The C interface as a program in C99 uses it. It runs under mpirun with any number of ranks.
 *
 * All values are small whole numbers, so that every order of adding gives the same sum, and q8 keeps them within a
 * known error. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/capi/dptrain_comm.h"

enum { ROWS = 64, COLUMNS = 300, BIASES = 50, STEPS = 5 };

#define CHECK(holds)                                                                             \
  do {                                                                                           \
    if (!(holds)) {                                                                              \
      fprintf(stderr, "line %d: %s (last error: %s)\n", __LINE__, #holds, dptrain_comm_last_error()); \
      dptrain_comm_abort(1, "a check failed");                                                   \
    }                                                                                            \
  } while (0)

static void check_refused(int result, int code, const char* message) {
  if (result == code && strcmp(dptrain_comm_last_error(), message) == 0) return;
  fprintf(stderr, "result %d, \"%s\"; expected %d, \"%s\"\n", result, dptrain_comm_last_error(), code, message);
  dptrain_comm_abort(1, "a check failed");
}

/* In the order in which backward would make them: the bias comes first. */
static const dptrain_comm_slot slots[] = {
    {"bias", 1, BIASES, 1, 0}, {"weights", ROWS, COLUMNS, 0, 0}, {"more\nweights", COLUMNS, ROWS, 0, 0}};
static const size_t lengths[] = {BIASES, ROWS * COLUMNS, ROWS * COLUMNS};

static float value(int rank, int step, size_t slot, size_t i) {
  return (float)((int)((i * 7 + slot * 3 + (size_t)step * 11 + (size_t)rank * 5) % 17) - 8);
}

static dptrain_comm* make(const char* compress) {
  dptrain_comm_options options;
  dptrain_comm* exchange = NULL;
  dptrain_comm_defaults(&options);
  CHECK(options.struct_bytes == sizeof options);
  options.compress = compress;
  options.bucket_bytes = 20000;
  options.link_bit_per_s = 1e9;
  CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_OK && exchange != NULL);
  return exchange;
}

/* One step; `shift` is added to one value of the last rank. The largest error of a sum is returned. */
static double step(dptrain_comm* exchange, int number, float shift, int* all_finite) {
  static const size_t order[] = {2, 0, 1};
  const int rank = dptrain_comm_rank(), ranks = dptrain_comm_size();
  double largest = 0;
  CHECK(dptrain_comm_begin_step(exchange, number < STEPS ? (double)number / STEPS : -1) == DPTRAIN_COMM_OK);
  for (size_t k = 0; k < 3; ++k) {
    float* values = dptrain_comm_values(exchange, order[k]);
    CHECK(values != NULL);
    for (size_t i = 0; i < lengths[order[k]]; ++i) values[i] = value(rank, number, order[k], i);
    if (order[k] == 1 && rank == ranks - 1) values[5] += shift;
    CHECK(dptrain_comm_ready(exchange, order[k]) == DPTRAIN_COMM_OK);
  }
  CHECK(dptrain_comm_finish_step(exchange, all_finite) == DPTRAIN_COMM_OK);
  for (size_t s = 0; s < 3; ++s) {
    const float* sums = dptrain_comm_values(exchange, s);
    for (size_t i = 0; i < lengths[s]; ++i) {
      double exact = 0;
      for (int r = 0; r < ranks; ++r) exact += value(r, number, s, i);
      if (fabs(sums[i] - exact) > largest) largest = fabs(sums[i] - exact);
    }
    CHECK(dptrain_comm_compare(exchange, sums, lengths[s]) == DPTRAIN_COMM_OK);
  }
  return largest;
}

static void sums_are_exact_without_compression(void) {
  dptrain_comm* exchange = make("none");
  dptrain_comm_statistics statistics;
  int all_finite = 0;
  for (int s = 0; s < STEPS; ++s) CHECK(step(exchange, s, 0, &all_finite) == 0 && all_finite == 1);
  memset(&statistics, 0, sizeof statistics);
  statistics.struct_bytes = sizeof statistics;
  CHECK(dptrain_comm_get_statistics(exchange, &statistics) == DPTRAIN_COMM_OK);
  CHECK(isnan(statistics.bits));
  const size_t buckets = dptrain_comm_bucket_count(exchange);
  dptrain_comm_bucket_statistics bucket;
  memset(&bucket, 0, sizeof bucket);
  bucket.struct_bytes = sizeof bucket;
  uint64_t bucket_bytes = 0;
  for (size_t b = 0; b < buckets; ++b) {
    CHECK(dptrain_comm_get_bucket_statistics(exchange, b, &bucket) == DPTRAIN_COMM_OK);
    CHECK(bucket.values > 0);
    bucket_bytes += bucket.sent_bytes;
  }
  CHECK(buckets > 0 && bucket_bytes == statistics.sent_bytes);
  CHECK(dptrain_comm_get_bucket_statistics(exchange, buckets, &bucket) == DPTRAIN_COMM_USAGE);
  const int32_t mine = 100 + dptrain_comm_rank();
  int32_t all[64];
  memset(all, 0, sizeof all);
  CHECK(dptrain_comm_gather(exchange, &mine, sizeof mine, dptrain_comm_rank() == 0 ? all : NULL) == DPTRAIN_COMM_OK);
  for (int32_t r = 0; r < dptrain_comm_size() && dptrain_comm_rank() == 0; ++r) CHECK(all[r] == 100 + r);
  CHECK(dptrain_comm_size() == 1 ? statistics.sent_bytes == 0 : statistics.sent_bytes > STEPS * 4 * 19000);
  CHECK(strstr(dptrain_comm_describe(exchange), "none") != NULL);
  dptrain_comm_destroy(exchange);
}

/* Not finite on one rank: all ranks hear of it. The next step brings what this one had, and then nothing is left. */
static void a_step_that_is_not_finite_is_skipped(void) {
  dptrain_comm* exchange = make("q8");
  int all_finite = 1;
  step(exchange, 0, INFINITY, &all_finite);
  CHECK(all_finite == 0);
  step(exchange, 1, 0, &all_finite);
  CHECK(all_finite == 1);
  CHECK(step(exchange, 2, 0, &all_finite) < 0.5 * dptrain_comm_size() && all_finite == 1);
  dptrain_comm_destroy(exchange);
}

/* A state that is loaded into a new exchange goes on with the same bits. */
static void a_state_goes_on(const char* compress) {
  int all_finite = 0;
  dptrain_comm* exchange = make(compress);
  for (int s = 0; s < 2; ++s) step(exchange, s, 0, &all_finite);
  const size_t size = dptrain_comm_state_bytes(exchange);
  char* state = malloc(size);
  CHECK(size > 0 && dptrain_comm_save_state(exchange, state, size) == DPTRAIN_COMM_OK);
  float* kept = malloc(sizeof(float) * lengths[1]);
  step(exchange, 2, 0, &all_finite);
  memcpy(kept, dptrain_comm_values(exchange, 1), sizeof(float) * lengths[1]);
  dptrain_comm_destroy(exchange);

  exchange = make(compress);
  CHECK(dptrain_comm_load_state(exchange, state, size) == DPTRAIN_COMM_OK);
  step(exchange, 2, 0, &all_finite);
  CHECK(memcmp(kept, dptrain_comm_values(exchange, 1), sizeof(float) * lengths[1]) == 0);

  char message[200];
  snprintf(message, sizeof message, "the buffer has %zu bytes, but the state has %zu bytes", size - 1, size);
  check_refused(dptrain_comm_save_state(exchange, state, size - 1), DPTRAIN_COMM_USAGE, message);
  snprintf(message, sizeof message,
           "the saved state of the exchange is damaged or cut off: its %zu bytes do not have the checksum that they were "
           "saved with",
           size - 1);
  check_refused(dptrain_comm_load_state(exchange, state, size - 1), DPTRAIN_COMM_DATA, message);
  check_refused(dptrain_comm_load_state(exchange, "no state", 8), DPTRAIN_COMM_DATA,
                "these 8 bytes are not a saved state of an exchange");
  dptrain_comm_destroy(exchange);
  free(state);
  free(kept);
}

static void wrong_arguments_are_refused(void) {
  dptrain_comm_options options;
  dptrain_comm* exchange = NULL;
  const dptrain_comm_slot empty = {"empty", 0, 4, 0, 0};
  dptrain_comm_defaults(&options);
  options.link_bit_per_s = 1e9;
  options.compress = "q7";
  CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_USAGE && exchange == NULL);
  CHECK(strstr(dptrain_comm_last_error(), "q7: unknown codec") != NULL);
  options.compress = "q8";
  options.topology = "star";
  CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_USAGE);
  CHECK(strstr(dptrain_comm_last_error(), "star") != NULL);
  options.topology = NULL;
  options.exact = "weigths*";
  CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_USAGE);
  CHECK(strstr(dptrain_comm_last_error(), "weigths*") != NULL);
  options.exact = NULL;
  options.struct_bytes = 3;
  check_refused(dptrain_comm_create(slots, 3, &options, &exchange), DPTRAIN_COMM_USAGE,
                "struct_bytes is not the size of the struct");
  check_refused(dptrain_comm_create(slots, 0, NULL, &exchange), DPTRAIN_COMM_USAGE, "an exchange needs one slot or more");
  check_refused(dptrain_comm_create(&empty, 1, NULL, &exchange), DPTRAIN_COMM_USAGE,
                "slot 0 has 0 x 4 values; allowed: 1 to 2^40");
  check_refused(dptrain_comm_init(), DPTRAIN_COMM_USAGE, "dptrain_comm_init has already been called");
  /* On one rank only: all of them get the error. */
  if (dptrain_comm_size() > 1) {
    options.struct_bytes = dptrain_comm_rank() == 1 ? 3 : sizeof options;
    check_refused(dptrain_comm_create(slots, 3, &options, &exchange), DPTRAIN_COMM_USAGE,
                  "struct_bytes is not the size of the struct");
  }

  exchange = make("none");
  check_refused(dptrain_comm_finalize(), DPTRAIN_COMM_USAGE, "destroy all exchanges first");
  check_refused(dptrain_comm_ready(exchange, 0), DPTRAIN_COMM_USAGE, "no step has begun");
  CHECK(dptrain_comm_values(exchange, 3) == NULL && strcmp(dptrain_comm_last_error(), "slot 3: there are 3") == 0);
  CHECK(dptrain_comm_begin_step(exchange, -1) == DPTRAIN_COMM_OK);
  check_refused(dptrain_comm_begin_step(exchange, -1), DPTRAIN_COMM_USAGE, "a step is under way");
  CHECK(dptrain_comm_ready(exchange, 0) == DPTRAIN_COMM_OK);
  check_refused(dptrain_comm_ready(exchange, 0), DPTRAIN_COMM_USAGE, "slot 0 was already reported as ready in this step");
  check_refused(dptrain_comm_finish_step(exchange, NULL), DPTRAIN_COMM_USAGE,
                "only 1 of 3 slots have been reported as ready");
  CHECK(dptrain_comm_ready(exchange, 1) == DPTRAIN_COMM_OK && dptrain_comm_ready(exchange, 2) == DPTRAIN_COMM_OK);
  CHECK(dptrain_comm_finish_step(exchange, NULL) == DPTRAIN_COMM_OK);
  dptrain_comm_destroy(exchange);
  dptrain_comm_destroy(NULL);
  check_refused(dptrain_comm_begin_step(NULL, -1), DPTRAIN_COMM_USAGE, "exchange is NULL");
  CHECK(dptrain_comm_describe(NULL) == NULL && dptrain_comm_state_bytes(NULL) == 0);
}

/* The bytes that a rank sends in a step, from the 10th step on. */
static double sent_bytes(dptrain_comm* exchange) {
  dptrain_comm_statistics statistics;
  int all_finite = 0;
  statistics.struct_bytes = sizeof statistics;
  for (int s = 0; s < 20; ++s) {
    if (s == 10) CHECK(dptrain_comm_get_statistics(exchange, &statistics) == DPTRAIN_COMM_OK);
    step(exchange, STEPS + s, 0, &all_finite);
  }
  CHECK(dptrain_comm_get_statistics(exchange, &statistics) == DPTRAIN_COMM_OK);
  return (double)statistics.sent_bytes / 10;
}

static void bytes_come_from_rank_0_between_steps(void) {
  dptrain_comm* exchange = make("ecq:bits=0.3");
  for (int s = 0; s < 3; ++s) {
    char text[8] = "";
    if (dptrain_comm_rank() == 0) snprintf(text, sizeof text, "step %d", s);
    CHECK(dptrain_comm_broadcast(text, sizeof text) == DPTRAIN_COMM_OK && text[5] == '0' + s);
    CHECK(dptrain_comm_begin_step(exchange, -1) == DPTRAIN_COMM_OK);
    CHECK(dptrain_comm_broadcast(text, sizeof text) == DPTRAIN_COMM_USAGE);
    for (size_t k = 0; k < 3; ++k) CHECK(dptrain_comm_ready(exchange, k) == DPTRAIN_COMM_OK);
    CHECK(dptrain_comm_finish_step(exchange, NULL) == DPTRAIN_COMM_OK);
  }
  dptrain_comm_destroy(exchange);
}

static void bits_can_be_set(void) {
  dptrain_comm* exchange = make("ecq:bits=0.3");
  double coarse = 0, fine = 0;
  coarse = sent_bytes(exchange);
  CHECK(dptrain_comm_set_bits(exchange, 3) == DPTRAIN_COMM_OK);
  fine = sent_bytes(exchange);
  /* Not ten times as many: the pieces are small, and after ten steps the rate is still on its way. */
  CHECK(dptrain_comm_size() == 1 || fine > 2 * coarse);
  CHECK(dptrain_comm_set_bits(exchange, 1e9) == DPTRAIN_COMM_USAGE);
  CHECK(dptrain_comm_set_bits(exchange, 0) == DPTRAIN_COMM_USAGE);
  dptrain_comm_destroy(exchange);
  exchange = make("q8");
  CHECK(dptrain_comm_set_bits(exchange, 1) == DPTRAIN_COMM_USAGE);
  CHECK(strstr(dptrain_comm_last_error(), "has no bits= to change") != NULL);
  dptrain_comm_destroy(exchange);
}

/* Gradients that do not change. The velocity of SGD with a momentum of 0.5 comes to twice the gradient; Adam's step to its
 * sign. */
static void steps_of_the_optimiser_are_exchanged(void) {
  dptrain_comm_options options;
  dptrain_comm* exchange = NULL;
  const int ranks = dptrain_comm_size();
  dptrain_comm_defaults(&options);
  options.link_bit_per_s = 1e9;
  options.compress = "ecq:error=0.02,velocity=on";
  for (int32_t optimizer = DPTRAIN_COMM_SGD; optimizer <= DPTRAIN_COMM_ADAM; ++optimizer) {
    options.optimizer = optimizer;
    options.momentum = 0.5;
    CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_OK);
    CHECK(dptrain_comm_makes_step(exchange, 0) == 0 && dptrain_comm_makes_step(exchange, 1) == 1);
    CHECK(dptrain_comm_makes_step(exchange, 2) == 1 && dptrain_comm_makes_step(exchange, 3) == 0);
    for (int s = 0; s < 12; ++s) {
      CHECK(dptrain_comm_begin_step(exchange, -1) == DPTRAIN_COMM_OK);
      for (size_t slot = 0; slot < 3; ++slot) {
        float* values = dptrain_comm_values(exchange, slot);
        for (size_t i = 0; i < lengths[slot]; ++i) values[i] = i % 2 == 0 ? 1.0f : -3.0f;
        CHECK(dptrain_comm_ready(exchange, slot) == DPTRAIN_COMM_OK);
      }
      CHECK(dptrain_comm_finish_step(exchange, NULL) == DPTRAIN_COMM_OK);
    }
    const float* values = dptrain_comm_values(exchange, 1);
    for (size_t i = 0; i < lengths[1]; ++i) {
      const double gradient = i % 2 == 0 ? 1.0 : -3.0;
      const double expected = optimizer == DPTRAIN_COMM_SGD ? 2.0 * gradient * ranks : gradient > 0 ? 1.0 : -1.0;
      /* A rank's estimate of what the others add to Adam's mean square is from 16 sums. */
      CHECK(fabs(values[i] - expected) <= (optimizer == DPTRAIN_COMM_SGD ? 0.3 * ranks : 0.5));
    }
    dptrain_comm_destroy(exchange);
  }
  options.optimizer = DPTRAIN_COMM_ANY_OPTIMIZER;
  check_refused(dptrain_comm_check(&options), DPTRAIN_COMM_USAGE,
                "ecq:error=0.02,velocity=on exchanges the optimiser's steps: set optimizer, or use velocity=off");
  options.optimizer = 3;
  check_refused(dptrain_comm_check(&options), DPTRAIN_COMM_USAGE,
                "optimizer must be DPTRAIN_COMM_ANY_OPTIMIZER (0), DPTRAIN_COMM_SGD (1) or DPTRAIN_COMM_ADAM (2), but is 3");
  options.optimizer = DPTRAIN_COMM_SGD;
  options.momentum = 1;
  check_refused(dptrain_comm_check(&options), DPTRAIN_COMM_USAGE, "momentum must be 0 or more and below 1, but is 1");
  options.optimizer = DPTRAIN_COMM_ADAM;
  options.beta2 = NAN;
  check_refused(dptrain_comm_check(&options), DPTRAIN_COMM_USAGE, "beta2 must be 0 or more and below 1, but is nan");
  options.beta2 = 0.99;
  options.epsilon = 0;
  check_refused(dptrain_comm_check(&options), DPTRAIN_COMM_USAGE, "epsilon 0: must be finite and above 0");
  /* auto takes steps where it knows the optimiser, and many bits where it does not. */
  options.epsilon = 1e-8;
  options.compress = "auto";
  CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_OK);
  CHECK(dptrain_comm_makes_step(exchange, 1) == 1);
  dptrain_comm_destroy(exchange);
  options.optimizer = DPTRAIN_COMM_ANY_OPTIMIZER;
  CHECK(dptrain_comm_create(slots, 3, &options, &exchange) == DPTRAIN_COMM_OK);
  CHECK(dptrain_comm_makes_step(exchange, 1) == 0);
  dptrain_comm_destroy(exchange);
}

int main(void) {
  char text[8] = "";
  dptrain_comm_options options;
  CHECK(dptrain_comm_rank() == -1);
  check_refused(dptrain_comm_create(slots, 3, NULL, NULL), DPTRAIN_COMM_USAGE, "exchange is NULL");
  check_refused(dptrain_comm_check(NULL), DPTRAIN_COMM_USAGE, "options is NULL");
  dptrain_comm_defaults(&options);
  CHECK(dptrain_comm_check(&options) == DPTRAIN_COMM_OK);
  CHECK(options.struct_bytes == sizeof options && options.shards == 1);
  /* Programs that were compiled when the struct ended earlier: nothing behind its end is written. */
  memset(&options, 0x55, sizeof options);
  (dptrain_comm_defaults)(&options);
  CHECK(options.struct_bytes == offsetof(dptrain_comm_options, codecs) && options.shards == 0x5555555555555555u);
  CHECK(dptrain_comm_check(&options) == DPTRAIN_COMM_OK);
  dptrain_comm_defaults(&options);
  options.compress = "q7";
  CHECK(dptrain_comm_check(&options) == DPTRAIN_COMM_USAGE);
  CHECK(strstr(dptrain_comm_last_error(), "q7: unknown codec") != NULL);
  CHECK(dptrain_comm_init() == DPTRAIN_COMM_OK);
  CHECK(strcmp(dptrain_comm_version(), DPTRAIN_COMM_VERSION) == 0);
  if (dptrain_comm_rank() == 0) strcpy(text, "all");
  CHECK(dptrain_comm_broadcast(text, sizeof text) == DPTRAIN_COMM_OK && strcmp(text, "all") == 0);
  sums_are_exact_without_compression();
  a_step_that_is_not_finite_is_skipped();
  a_state_goes_on("q8");
  a_state_goes_on("randk:ratio=0.1");
  a_state_goes_on("ecq:bits=0.5");
  steps_of_the_optimiser_are_exchanged();
  bits_can_be_set();
  bytes_come_from_rank_0_between_steps();
  wrong_arguments_are_refused();
  CHECK(dptrain_comm_finalize() == DPTRAIN_COMM_OK);
  return 0;
}
