/* The C interface's memory: a changed loss scale, saved states and whose they are, and what an exchange reports of a step's
 * values. It runs under mpirun with any number of ranks. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/capi/dptrain_comm.h"

enum { ROWS = 150, COLUMNS = 200, VALUES = ROWS * COLUMNS, STEPS = 20 };

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

static const dptrain_comm_slot slots[] = {{"weights", ROWS, COLUMNS, 0, 0}, {NULL, COLUMNS, ROWS, 0, 0}};

static dptrain_comm* make(const char* compress) {
  dptrain_comm_options options;
  dptrain_comm* exchange = NULL;
  dptrain_comm_defaults(&options);
  options.compress = compress;
  options.link_bit_per_s = 1e9;
  CHECK(dptrain_comm_create(slots, 2, &options, &exchange) == DPTRAIN_COMM_OK);
  CHECK(strstr(dptrain_comm_describe(exchange), "too small") == NULL);
  return exchange;
}

/* `odd` is put at one place of the second slot of the last rank, unless it is 0. */
static int step(dptrain_comm* exchange, int number, double scale, float odd) {
  int all_finite = -1;
  const int rank = dptrain_comm_rank();
  CHECK(dptrain_comm_begin_step(exchange, -1) == DPTRAIN_COMM_OK);
  for (size_t s = 0; s < 2; ++s) {
    float* values = dptrain_comm_values(exchange, s);
    for (int i = 0; i < VALUES; ++i) {
      values[i] = (float)(scale * sin(1.0 + 0.7 * i + 3.0 * rank + 2.0 * (double)s + 0.1 * number * (i % 3)));
    }
    if (odd != 0 && s == 1 && rank == dptrain_comm_size() - 1) values[100] = odd;
    CHECK(dptrain_comm_ready(exchange, s) == DPTRAIN_COMM_OK);
  }
  CHECK(dptrain_comm_finish_step(exchange, &all_finite) == DPTRAIN_COMM_OK);
  return all_finite;
}

/* The sum of all deliveries of one slot, in the units of the first scale. In the middle of the second half the state is saved, and
 * an exchange that is made anew goes on with it. */
static void deliver(const char* compress, double second, double* total) {
  dptrain_comm* exchange = make(compress);
  for (int i = 0; i < VALUES; ++i) total[i] = 0;
  for (int s = 0; s < STEPS; ++s) {
    const double scale = s < STEPS / 2 ? 65536 : second;
    if (s == STEPS / 2) CHECK(dptrain_comm_scale_residual(exchange, second / 65536) == DPTRAIN_COMM_OK);
    if (s == STEPS * 3 / 4) {
      const size_t size = dptrain_comm_state_bytes(exchange);
      void* state = malloc(size);
      CHECK(dptrain_comm_save_state(exchange, state, size) == DPTRAIN_COMM_OK);
      dptrain_comm_destroy(exchange);
      exchange = make(compress);
      CHECK(dptrain_comm_load_state(exchange, state, size) == DPTRAIN_COMM_OK);
      free(state);
    }
    CHECK(step(exchange, s, scale, 0) == 1);
    for (int i = 0; i < VALUES; ++i) total[i] += (double)dptrain_comm_values(exchange, 0)[i] / scale;
  }
  dptrain_comm_destroy(exchange);
}

static void a_changed_loss_scale_changes_nothing(const char* compress) {
  static double wanted[VALUES], found[VALUES];
  deliver(compress, 65536, wanted);
  deliver(compress, 4096, found);
  for (int i = 0; i < VALUES; ++i) {
    if (found[i] == wanted[i]) continue;
    fprintf(stderr, "%s, value %d: %g, and with a constant scale %g\n", compress, i, found[i], wanted[i]);
    dptrain_comm_abort(1, "a check failed");
  }
}

static void wrong_factors_are_refused(void) {
  dptrain_comm* exchange = make("q8");
  check_refused(dptrain_comm_scale_residual(exchange, 0), DPTRAIN_COMM_USAGE,
                "loss scale factor 0: must be a finite number above 0");
  CHECK(dptrain_comm_scale_residual(exchange, -1) == DPTRAIN_COMM_USAGE);
  CHECK(dptrain_comm_scale_residual(exchange, NAN) == DPTRAIN_COMM_USAGE);
  CHECK(dptrain_comm_scale_residual(exchange, INFINITY) == DPTRAIN_COMM_USAGE);
  CHECK(dptrain_comm_begin_step(exchange, -1) == DPTRAIN_COMM_OK);
  check_refused(dptrain_comm_scale_residual(exchange, 2), DPTRAIN_COMM_USAGE, "a step is under way");
  for (size_t s = 0; s < 2; ++s) CHECK(dptrain_comm_ready(exchange, s) == DPTRAIN_COMM_OK);
  CHECK(dptrain_comm_finish_step(exchange, NULL) == DPTRAIN_COMM_OK);
  dptrain_comm_destroy(exchange);
  check_refused(dptrain_comm_scale_residual(NULL, 2), DPTRAIN_COMM_USAGE, "exchange is NULL");
}

/* The first line of a state, the rank, the number of ranks and the loss scale, the tensors ("weights" and one without a name), the
 * parts; at the end the seal. */
enum { MARK = 21, RANK = MARK, RANKS = MARK + 8, SCALE = MARK + 16, TENSORS = MARK + 24, NAMED = 8 + 7 + 24, UNNAMED = 8 + 24,
       PARTS = TENSORS + 8 + NAMED + UNNAMED, SEAL = 4 };

/* CRC-32C, bit by bit. */
static void seal(char* state, size_t size) {
  uint32_t crc = ~0u;
  for (size_t at = 0; at < size - SEAL; ++at) {
    crc ^= (unsigned char)state[at];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1u)));
  }
  crc = ~crc;
  memcpy(state + size - SEAL, &crc, SEAL);
}

/* A state in the third format, which does not list tensors. Returns its size. */
static size_t in_third_format(const char* state, size_t size, char* changed) {
  const size_t table = PARTS - TENSORS;
  memcpy(changed, state, TENSORS);
  memcpy(changed + TENSORS, state + PARTS, size - PARTS);
  memcpy(changed, "dptrain_comm state 3\n", MARK);
  seal(changed, size - table);
  return size - table;
}

/* A state in the second format, which has no seal either, so that a test can change it. Returns its size. */
static size_t unsealed(const char* state, size_t size, char* changed) {
  const size_t third_size = in_third_format(state, size, changed);
  memcpy(changed, "dptrain_comm state 2\n", MARK);
  return third_size - SEAL;
}

static void a_damaged_state_is_refused(dptrain_comm* exchange, const char* state, size_t size) {
  char message[300];
  char* changed = malloc(size);
  for (size_t at = MARK; at < size; at += at < 200 ? 1 : 997) {
    memcpy(changed, state, size);
    changed[at] = (char)(changed[at] ^ 4);
    snprintf(message, sizeof message,
             "the saved state of the exchange is damaged or cut off: its %zu bytes do not have the checksum that they were saved with",
             size);
    check_refused(dptrain_comm_load_state(exchange, changed, size), DPTRAIN_COMM_DATA, message);
  }
  for (size_t end = 0; end < size; end += end < 200 ? 1 : 997) {
    CHECK(dptrain_comm_load_state(exchange, state, end) == DPTRAIN_COMM_DATA);
    CHECK(dptrain_comm_load_state(exchange, changed, end) == DPTRAIN_COMM_DATA);
  }
  /* Without a seal, names and lengths are checked. */
  const size_t short_size = unsealed(state, size, changed);
  CHECK(dptrain_comm_load_state(exchange, changed, short_size) == DPTRAIN_COMM_OK);
  for (size_t end = 0; end < short_size; end += end < 200 ? 1 : 997) {
    CHECK(dptrain_comm_load_state(exchange, changed, end) == DPTRAIN_COMM_DATA);
  }
  changed[TENSORS + 16] = (char)0xe8;
  check_refused(dptrain_comm_load_state(exchange, changed, short_size), DPTRAIN_COMM_DATA,
                "the saved state of the exchange is damaged: the 4 bytes of a part's name are not a valid name; load a state that this "
                "rank has saved");
  free(changed);
}

static int merge(dptrain_comm* exchange, const char* state, size_t size) {
  const void* states[] = {state};
  return dptrain_comm_merge_states(exchange, states, &size, 1);
}

/* Torn, changed and wrongly counted states are refused, also where their seal is right. */
static void a_merge_looks_at_everything(dptrain_comm* exchange, const char* state, size_t size) {
  char message[300];
  const int rank = dptrain_comm_rank(), ranks = dptrain_comm_size();
  char* changed = malloc(size);
  CHECK(merge(exchange, state, size) == DPTRAIN_COMM_OK);
  check_refused(dptrain_comm_merge_states(exchange, NULL, NULL, 0), DPTRAIN_COMM_USAGE, "states or sizes is NULL");
  for (size_t end = 0; end < size; end += end < 200 ? 1 : 9973) {
    CHECK(merge(exchange, state, end) == DPTRAIN_COMM_DATA);
    memcpy(changed, state, size);
    if (end < SEAL) continue;
    seal(changed, end);
    CHECK(merge(exchange, changed, end) == DPTRAIN_COMM_DATA);
  }
  const size_t third_size = in_third_format(state, size, changed);
  CHECK(merge(exchange, changed, third_size) == DPTRAIN_COMM_DATA);
  CHECK(strstr(dptrain_comm_last_error(), "does not list its tensors") != NULL);
  const uint64_t others[] = {0, (uint64_t)1 << 63, 3, ~(uint64_t)0};
  const size_t places[] = {TENSORS, TENSORS + 8, TENSORS + 8 + 15, TENSORS + 8 + 15 + 8, PARTS};
  for (size_t place = 0; place < sizeof places / sizeof *places; ++place) {
    for (size_t other = 0; other < 4; ++other) {
      memcpy(changed, state, size);
      memcpy(changed + places[place], &others[other], 8);
      seal(changed, size);
      /* One rank has no residual that a tensor of another shape would not fit. */
      if (ranks > 1 || others[other] != 3) CHECK(merge(exchange, changed, size) == DPTRAIN_COMM_DATA);
    }
  }
  const uint64_t of_ranks = (uint64_t)ranks + 1;
  memcpy(changed, state, size);
  memcpy(changed + RANKS, &of_ranks, 8);
  seal(changed, size);
  snprintf(message, sizeof message,
           "state 0 of 1 belongs to rank %d of %d, but this is rank %d of %d; allowed: this rank's own state, or the states of all "
           "ranks of another number of ranks, in order",
           rank, ranks + 1, rank, ranks);
  check_refused(merge(exchange, changed, size), DPTRAIN_COMM_DATA, message);
  free(changed);
}

static void a_state_is_that_of_its_rank(void) {
  char message[300];
  const int rank = dptrain_comm_rank(), ranks = dptrain_comm_size();
  dptrain_comm* exchange = make("q8");
  step(exchange, 0, 1, 0);
  const size_t size = dptrain_comm_state_bytes(exchange);
  char* state = malloc(size);
  char* changed = malloc(size);
  CHECK(dptrain_comm_save_state(exchange, state, size) == DPTRAIN_COMM_OK);
  CHECK(dptrain_comm_load_state(exchange, state, size) == DPTRAIN_COMM_OK);
  for (int other = 0; other < 2; ++other) {
    const uint64_t of_rank = (uint64_t)(other == 0 ? rank + 1 : rank), of_ranks = (uint64_t)(other == 0 ? ranks : ranks + 1);
    const size_t changed_size = unsealed(state, size, changed);
    memcpy(changed + RANK, &of_rank, 8);
    memcpy(changed + RANKS, &of_ranks, 8);
    snprintf(message, sizeof message,
             "the saved state of the exchange belongs to rank %d of %d, but this is rank %d of %d: each rank must load its "
             "own state",
             (int)of_rank, (int)of_ranks, rank, ranks);
    check_refused(dptrain_comm_load_state(exchange, changed, changed_size), DPTRAIN_COMM_DATA, message);
  }
  const double no_scale = 0;
  const size_t short_size = unsealed(state, size, changed);
  memcpy(changed + SCALE, &no_scale, 8);
  check_refused(dptrain_comm_load_state(exchange, changed, short_size), DPTRAIN_COMM_DATA,
                "the saved state of the exchange has a loss scale of 0");
  a_damaged_state_is_refused(exchange, state, size);
  a_merge_looks_at_everything(exchange, state, size);
  CHECK(dptrain_comm_load_state(exchange, changed, in_third_format(state, size, changed)) == DPTRAIN_COMM_OK);
  /* The first format said nothing of all this. */
  memcpy(changed, "dptrain_comm state 1\n", MARK);
  memcpy(changed + MARK, state + PARTS, size - SEAL - PARTS);
  CHECK(dptrain_comm_load_state(exchange, changed, size - SEAL - (PARTS - MARK)) == DPTRAIN_COMM_OK);
  CHECK(step(exchange, 1, 1, 0) == 1);
  dptrain_comm_destroy(exchange);

  if (ranks > 1) {
    exchange = make("q8");
    if (rank == 1) CHECK(dptrain_comm_load_state(exchange, state, size) == DPTRAIN_COMM_OK);
    check_refused(dptrain_comm_begin_step(exchange, -1), DPTRAIN_COMM_DATA,
                  "rank 0 begins at step 0, but rank 1 continues from step 1: every rank must load its state of the same step, "
                  "or no rank may load a state");
    dptrain_comm_destroy(exchange);
  }
  free(state);
  free(changed);
}

/* How often `words` stand in what this rank has written to stderr since `into` took its place; then it is again as before. */
static int count_in_stderr(FILE* into, int own, const char* words) {
  static char text[20000];
  int count = 0;
  fflush(stderr);
  rewind(into);
  text[fread(text, 1, sizeof text - 1, into)] = 0;
  dup2(own, STDERR_FILENO);
  for (const char* at = text; (at = strstr(at, words)) != NULL; ++at) ++count;
  return count;
}

static void what_is_wrong_with_values_is_reported_once(const char* compress, float odd, const char* words, int on_rank) {
  dptrain_comm_statistics statistics;
  FILE* into = tmpfile();
  const int own = dup(STDERR_FILENO), ranks = dptrain_comm_size();
  CHECK(into != NULL && own >= 0);
  dptrain_comm* exchange = make(compress);
  fflush(stderr);
  dup2(fileno(into), STDERR_FILENO);
  for (int s = 0; s < 4; ++s) step(exchange, s, 1, s == 1 || s == 2 ? odd : 0);
  const int found = count_in_stderr(into, own, words);
  const int any = count_in_stderr(into, own, "dptrain_comm: ");
  fclose(into);
  close(own);
  memset(&statistics, 0, sizeof statistics);
  statistics.struct_bytes = sizeof statistics;
  CHECK(dptrain_comm_get_statistics(exchange, &statistics) == DPTRAIN_COMM_OK);
  if (isinf(odd)) {
    CHECK(statistics.skipped_steps == 2 && statistics.clamped_values == 0);
    CHECK(found == (dptrain_comm_rank() == on_rank) && any == found);
  } else {
    CHECK(statistics.skipped_steps == 0);
    /* On one rank nothing is encoded. */
    if (dptrain_comm_rank() == on_rank && ranks > 1) CHECK(found == 1 && any == 1 && statistics.clamped_values >= 2);
    if (ranks == 1) CHECK(found == 0 && statistics.clamped_values == 0);
  }
  dptrain_comm_destroy(exchange);
}

int main(void) {
  char words[200];
  CHECK(dptrain_comm_init() == DPTRAIN_COMM_OK);
  const char* codecs[] = {"q4",  "topk:ratio=0.01", "powersgd:rank=2",       "ecq:bits=0.35", "ecq:error=0.5", "threshold:alpha=80000",
                          "auto:min=0.5,max=0.5", "q8", "randk:ratio=0.1"};
  for (size_t c = 0; c < sizeof codecs / sizeof *codecs; ++c) a_changed_loss_scale_changes_nothing(codecs[c]);
  wrong_factors_are_refused();
  a_state_is_that_of_its_rank();
  const int last = dptrain_comm_size() - 1;
  snprintf(words, sizeof words, "step 2: the gradient is not finite on rank %d, first in slot 1; all ranks must skip the step", last);
  what_is_wrong_with_values_is_reported_once("q8", INFINITY, words, 0);
  what_is_wrong_with_values_is_reported_once("none", -INFINITY, words, 0);
  snprintf(words, sizeof words, "step 2: fp16 has clamped 1 values on rank %d to its largest one, first in slot 1", last);
  what_is_wrong_with_values_is_reported_once("fp16", 1e5f, words, last);
  CHECK(dptrain_comm_finalize() == DPTRAIN_COMM_OK);
  return 0;
}
