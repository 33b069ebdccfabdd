/* The exchange of dptrain for other programs: gradients of all ranks in, their sum out, compressed
 * on the way.
 *
 * C99. A program that is started by mpirun:
 *
 *     dptrain_comm_init();                                  starts MPI, unless the program has
 *     dptrain_comm_create(slots, n, &options, &exchange);   what the gradient is made of
 *     for each step:
 *         dptrain_comm_begin_step(exchange, -1);
 *         for each slot, as its gradient becomes final:
 *             write dptrain_comm_values(exchange, slot)
 *             dptrain_comm_ready(exchange, slot)            a bucket leaves when it is complete
 *         dptrain_comm_finish_step(exchange, &all_finite)   the values are now sums over ranks
 *     dptrain_comm_destroy(exchange);
 *     dptrain_comm_finalize();
 *
 * Sums, not means: divide by the number of ranks before or after. After finish_step all ranks hold
 * the same bits. A codec's error stays in a residual on the rank that made it, and is sent in
 * a later step.
 *
 * Steps. Codecs with few bits work best if each rank makes the optimiser's step before the exchange
 * (velocity=). If the options say what the optimiser does, the values of slots for which
 * dptrain_comm_makes_step() is 1 are its steps instead of gradients, and the program makes
 *     parameter -= learning rate * value
 * itself. It applies AdamW's weight decay itself, too. Coupled weight decay (SGD, Adam) it adds to
 * its gradient before ready, 1/P of it on each of P ranks. Adam's steps do not depend on the scale
 * of the loss, by which gradients are divided before ready. A saved state then holds this rank's
 * moments of the optimiser.
 *
 * Results. Functions return DPTRAIN_COMM_OK or one of the codes below, which are dptrain's exit
 * codes, and leave one sentence in dptrain_comm_last_error(). After DPTRAIN_COMM_NETWORK the
 * exchange cannot be used any more, and other ranks may be waiting: end with dptrain_comm_abort(),
 * never with MPI_Finalize.
 *
 * Ranks. Except for dptrain_comm_ready, whose order is free, all ranks make the same calls in the
 * same order.
 *
 * Threads. One thread at a time calls. A thread of the exchange calls MPI while it exists: programs
 * that use MPI themselves in the meantime must have started it with MPI_THREAD_MULTIPLE, and need
 * MPI_THREAD_SERIALIZED at least. Several exchanges, which need MPI_THREAD_MULTIPLE, are
 * independent of each other: all ranks create them in the same order. dptrain_comm_init sets
 * parameters of Open MPI that a slow network needs, in the environment and before it starts MPI
 * (comm/mpi/runtime/mpi_runtime.hpp lists them); programs that start MPI set them themselves.
 *
 * Memory. Strings and arrays that are given are copied. Values and strings that are returned belong
 * to the library; values live as long as the exchange, a string until the next call. */
#ifndef DPTRAIN_COMM_H
#define DPTRAIN_COMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version that a program was compiled with; dptrain_comm_version() returns the one that it runs
 * with. Within a major version functions are added and structs that begin with struct_bytes grow at
 * their end, nothing else changes: a program works with this library and every later one of the
 * same major version. */
#define DPTRAIN_COMM_VERSION "0.1.0"

enum {
  DPTRAIN_COMM_OK = 0,
  DPTRAIN_COMM_USAGE = 2,    /* a wrong argument, codec or topology */
  DPTRAIN_COMM_DATA = 3,     /* a saved state that does not fit */
  DPTRAIN_COMM_NETWORK = 4,  /* MPI, or a silent or lost rank */
  DPTRAIN_COMM_MEMORY = 5,   /* memory does not suffice */
  DPTRAIN_COMM_INTERNAL = 70 /* a bug of the library */
};

/* What the program's optimiser does with a gradient, as PyTorch defines it. */
enum {
  DPTRAIN_COMM_ANY_OPTIMIZER = 0, /* not known */
  DPTRAIN_COMM_SGD = 1,           /* with momentum, without dampening */
  DPTRAIN_COMM_ADAM = 2           /* Adam or AdamW, without amsgrad */
};

typedef struct dptrain_comm dptrain_comm; /* an exchange */

/* A tensor of the model, as a matrix of rows x columns floats (for a convolution: outputs x the
 * rest). */
typedef struct {
  const char* name; /* for messages and for `exact` below; UTF-8 */
  uint64_t rows, columns;
  int32_t is_1d; /* 1: a bias or a scale of normalisation, which tolerates no coarse bins */
  int32_t reserved;
} dptrain_comm_slot;

/* dptrain_comm_defaults(&options) sets all fields. */
typedef struct {
  uint64_t struct_bytes; /* sizeof(dptrain_comm_options) of the caller */
  const char* compress;  /* as dptrain --compress: none, q8, ecq:bits=0.35, auto, fewest, ...;
                            default: auto */
  const char* topology;  /* ring, direct, grid, tree, ps, hierarchical; default NULL: the codec's
                            own,  mostly ring */
  const char* exact;     /* names of slots that are sent in fp32, separated by commas, with * and ?;
                            default: NULL */
  uint64_t seed;         /* of codecs that draw random numbers; default: 0 */
  uint64_t bucket_bytes; /* of fp32; slots are sent together in buckets of this size; default 0: by
                            the network */
  double timeout_s;      /* how long a silent rank is waited for; default: 60 */
  double link_bit_per_s; /* what the slowest link of a rank carries; default 0: it is measured by
                            create, which takes 1-2 s */
  const char* trace; /* the name of a new file that dptrain_comm_write_trace makes; default NULL:
                        no trace */
  uint64_t
      trace_first; /* the steps of the trace: trace_steps steps (1 to 1000; default: 20) after */
  uint64_t trace_steps; /* the first trace_first ones (default: 5) of this exchange */
  int32_t optimizer;    /* DPTRAIN_COMM_SGD or DPTRAIN_COMM_ADAM: auto then exchanges steps, and
                           velocity= is allowed. Default: DPTRAIN_COMM_ANY_OPTIMIZER, for which auto
                           sends 2 bits a value or more, which suits any optimiser */
  int32_t has_nesterov; /* of SGD: 1 or 0; default: 0 */
  double momentum;      /* of SGD, 0 to below 1; default: 0.9 */
  double beta1, beta2;  /* of Adam, 0 to below 1; default: 0.9 and 0.999 */
  double epsilon;       /* of Adam, above 0; default: 1e-8 */
  const char* codecs;   /* of single slots by their names, such as "wte.*=q8;*bias=none", with * and
                           ?; later ones win; not auto, ecq and others with a rate or a topology of
                           their own. Default: NULL */
  uint64_t shards;      /* each `shards` consecutive ranks hold one model in parts: rank r exchanges
                           with the ranks that have the same part, r modulo shards, and messages
                           count these ranks alone. Default: 1, a whole model on each */
} dptrain_comm_options;

/* This rank's costs since the last call. */
typedef struct {
  uint64_t struct_bytes; /* the caller sets it: sizeof(dptrain_comm_statistics) */
  uint64_t sent_bytes, received_bytes;
  double comm_s;           /* with a bucket under way; of it: */
  double encode_s;         /* in encoders */
  double decode_s;         /* in decoders */
  double peer_wait_s;      /* waiting for a rank that had not begun */
  double wire_s;           /* the rest */
  double bits;             /* a value, of ecq and auto in the last step; NAN for other codecs */
  uint64_t skipped_steps;  /* some rank's gradient was not finite */
  uint64_t clamped_values; /* by fp16, whose largest value is 65504 */
} dptrain_comm_statistics;

/* A bucket of this rank, in the time of the last dptrain_comm_get_statistics(). The squares are
 * sums over values that were examined, so that those of ranks can be added: an encoder's relative
 * error is sqrt(error_squares / value_squares). */
typedef struct {
  uint64_t struct_bytes; /* the caller sets it: sizeof(dptrain_comm_bucket_statistics) */
  uint64_t values;       /* of the bucket */
  uint64_t sent_bytes;
  double encode_s, decode_s, peer_wait_s, wire_s;
  double error_squares, value_squares; /* of what encoders dropped, and of what they were given */
  double residual_squares;             /* of all that waits to be sent, now */
} dptrain_comm_bucket_statistics;

/* The last step of codecs with a rate (ecq:bits=, ecq:error=, auto); NAN if a value does not apply.
 */
typedef struct {
  uint64_t struct_bytes;                  /* the caller sets it: sizeof(dptrain_comm_rate) */
  double planned_bits;                    /* a value */
  double partial_bits, total_bits;        /* as sent on the way to the sum, and of the sum */
  double partial_step, total_step;        /* of the quantiser, chosen after this step */
  double link_bytes_per_s;                /* of auto: what this rank's link carries, */
  double hidden_bits;                     /* and the bits that hide behind computation there */
  double relative_error, residual_growth; /* of this rank's encodes, as measured last: what was
                                             dropped over what was encoded, the residual's norm over
                                             the gradient's */
  double guard_factor;   /* by which the bits are multiplied where the residual is too large */
  double wished_bits;    /* of auto: the least of all ranks' hidden_bits, which decides */
  double binding_bucket; /* of auto: from it on this rank's link has no time left */
} dptrain_comm_rate;

/* Starts MPI if the program has not, and duplicates MPI_COMM_WORLD. Collective. DPTRAIN_COMM_USAGE
 * if another launcher's variables (torchrun's WORLD_SIZE, PMI_SIZE, SLURM_STEP_NUM_TASKS) count
 * other processes than MPI does, in a process that a rank has started, and in a second process with
 * a rank's identity, as torchrun inside mpirun starts one. */
int dptrain_comm_init(void);
/* The same for the ranks of a communicator: MPI_Comm_c2f(comm). MPI must be running. A launcher may
 * count the processes of MPI or those of the communicator. */
int dptrain_comm_init_with(int32_t fortran_handle);
/* Ends MPI if dptrain_comm_init has started it. Collective. */
int dptrain_comm_finalize(void);
/* Says the reason (NULL: nothing) and ends all ranks with that exit code. Does not return. */
void dptrain_comm_abort(int exit_code, const char* reason);
int dptrain_comm_rank(void); /* -1 before init */
int dptrain_comm_size(void);
/* Rank 0's bytes on all ranks, such as the parameters at the start. Collective, not in the middle
 * of an exchange's step. */
int dptrain_comm_broadcast(void* bytes, size_t size);

/* Sets the fields of a struct of that size. dptrain_comm_defaults(options) gives it that of the
 * header that a program was compiled with. */
void dptrain_comm_defaults_sized(dptrain_comm_options* options, size_t struct_bytes);
/* A function as well, of the struct that ends before codecs, for programs of that time. */
void dptrain_comm_defaults(dptrain_comm_options* options);
#define dptrain_comm_defaults(options) dptrain_comm_defaults_sized((options), sizeof *(options))
/* Whether each option is right by itself. Not collective; also before init. */
int dptrain_comm_check(const dptrain_comm_options* options);
/* Collective; all ranks have the same version of this library and give the same slots and options,
 * but for the trace's name. If not, or if those of one rank are wrong, all get the same error.
 * options: NULL for the defaults. */
int dptrain_comm_create(const dptrain_comm_slot* slots, size_t count,
                        const dptrain_comm_options* options, dptrain_comm** exchange);
/* NULL: nothing happens. After an exchange was destroyed in a step, or after an error in one,
 * several ranks cannot create another: messages of that step may still come. */
void dptrain_comm_destroy(dptrain_comm* exchange);

/* The slot's rows x columns floats; NULL for a wrong index. Write them between begin_step and
 * ready, read them between finish_step and the next begin_step. */
float* dptrain_comm_values(dptrain_comm* exchange, size_t slot);
/* 1 if that slot's values are steps of the optimiser (see Steps above); 0 if they are gradients, or
 * for a wrong index. */
int dptrain_comm_makes_step(dptrain_comm* exchange, size_t slot);
/* progress: the share of the training that is done, 0 to 1, so that ecq:bits=X spends more bits at
 * the beginning; below 0: not known. */
int dptrain_comm_begin_step(dptrain_comm* exchange, double progress);
/* Once a step for every slot, in any order. The order of the slots in create should be the one in
 * which they become ready. */
int dptrain_comm_ready(dptrain_comm* exchange, size_t slot);
/* all_finite: 1, or 0 if some rank's values were not: then the values are no sums, every rank must
 * skip the step, and what had been delivered is sent again later. Rank 0 reports the first such
 * step of an exchange on stderr, with the rank and the slot, and every rank its first step in which
 * fp16 clamped values: a loss scaler takes these for finite. dptrain_comm_statistics count both. */
int dptrain_comm_finish_step(dptrain_comm* exchange, int* all_finite);
/* Instead of dptrain_comm_begin_step, for what parameters change by in several steps (local SGD,
 * DiLoCo): all slots' values must be there before. Codecs with a rate look at them, since rounds
 * are too unlike each other for the last one to tell. From the first round on all steps of the
 * exchange are rounds. */
int dptrain_comm_begin_round(dptrain_comm* exchange, double progress);

int dptrain_comm_get_statistics(dptrain_comm* exchange, dptrain_comm_statistics* statistics);
size_t dptrain_comm_bucket_count(dptrain_comm* exchange); /* 0 after an error */
int dptrain_comm_get_bucket_statistics(dptrain_comm* exchange, size_t bucket,
                                       dptrain_comm_bucket_statistics* statistics);
int dptrain_comm_get_rate(dptrain_comm* exchange, dptrain_comm_rate* rate);
/* From the next step on this many bits a value in the mean, for ecq:bits=. Between steps, the same
 * on all ranks. It takes some steps to be reached. A saved state does not hold it. */
int dptrain_comm_set_bits(dptrain_comm* exchange, double bits);
/* The loss has another scale from the next step on, as GradScaler of PyTorch and others change it:
 * factor is the new scale over the old one. Residuals, steps of quantisers and thresholds follow,
 * and steps deliver what they would have delivered with a constant scale. Collective, with the same
 * factor; between steps. A saved state holds it. */
int dptrain_comm_scale_residual(dptrain_comm* exchange, double factor);
/* Rank 0 writes the trace that the options ask for: what all ranks did when, on one clock, for
 * ui.perfetto.dev and chrome://tracing. Collective; between steps, after the last one that it
 * shows, or earlier, and then without the others. Fails on all ranks if rank 0 cannot write the
 * file; a later call tries again. */
int dptrain_comm_write_trace(dptrain_comm* exchange);
/* The same number of bytes of each rank, one after the other in `all` on rank 0, such as its
 * statistics; others may give NULL there. With shards, of those that exchange with each other, on
 * the lowest one. Collective; between steps. */
int dptrain_comm_gather(dptrain_comm* exchange, const void* bytes, size_t size, void* all);
/* The buckets, a line each: slots, values, codec, topology. NULL after an error. */
const char* dptrain_comm_describe(dptrain_comm* exchange);
/* Whether all ranks hold the same bits of these values; if not, DPTRAIN_COMM_INTERNAL, with the
 * ranks that differ. Collective; between steps. */
int dptrain_comm_compare(dptrain_comm* exchange, const float* values, size_t count);

/* Residuals and what else a codec keeps from step to step, for checkpoints: each rank saves and
 * loads its own. Between steps. A state fits an exchange of the same slots, options and number of
 * ranks, and only the rank that has saved it: others get DPTRAIN_COMM_DATA, and so does a damaged
 * one. Load it before the first step, which fails on all ranks if they are not at the same one. A
 * state that one rank alone loads later makes the next step fail, with DPTRAIN_COMM_DATA. */
size_t dptrain_comm_state_bytes(dptrain_comm* exchange); /* 0 after an error */
int dptrain_comm_save_state(dptrain_comm* exchange, void* bytes, size_t size);
int dptrain_comm_load_state(dptrain_comm* exchange, const void* bytes, size_t size);
/* Goes on from states that dptrain_comm_load_state refuses: this rank's own of an exchange with
 * other slots (count 1), or those of all ranks of another number of ranks, in their order, the same
 * on all ranks. Slots are found by name and shape. What waits to be sent is added up, rank r's part
 * by rank r modulo the number of ranks; moments of an optimiser are carried over in proportion. New
 * slots begin at zero; what waits for a slot that is gone is dropped. Between steps, on all ranks.
 * DPTRAIN_COMM_USAGE for another number of ranks with the topology hierarchical or with shards. */
int dptrain_comm_merge_states(dptrain_comm* exchange, const void* const* states,
                              const size_t* sizes, size_t count);

/* The error of the last call of this thread that failed; empty before. */
const char* dptrain_comm_last_error(void);
const char* dptrain_comm_version(void);

#ifdef __cplusplus
}
#endif

#endif
