/* dptrain's gradient exchange for other programs: gradients of all ranks in, their sum out,
 * compressed on the way.
 *
 * C99. A program that is started by mpirun:
 *
 *     dptrain_comm_init();                                  starts MPI, unless it is running
 *     dptrain_comm_create(slots, n, &options, &exchange);   the tensors of the gradient
 *     for each step:
 *         dptrain_comm_begin_step(exchange, -1);
 *         for each slot, as its gradient becomes final:
 *             write dptrain_comm_values(exchange, slot)
 *             dptrain_comm_ready(exchange, slot)            a bucket leaves when it is complete
 *         dptrain_comm_finish_step(exchange, &all_finite)   the values are now sums over ranks
 *     dptrain_comm_destroy(exchange);
 *     dptrain_comm_finalize();
 *
 * The results are sums, not means: divide by the number of ranks before or after. After finish_step
 * all ranks hold the same bits. The part of a value that a codec drops stays in a residual on the
 * rank that encoded the value, and is sent in a later step.
 *
 * Steps. Codecs with few bits work best if each rank makes the optimiser's step before the exchange
 * (velocity=). Describe the optimiser in the options to allow this. For slots with
 * dptrain_comm_makes_step() = 1, the values after finish_step are then the optimiser's steps, not
 * gradients, and the program itself computes
 *     parameter -= learning rate * value
 * and applies AdamW's weight decay. Coupled weight decay (SGD, Adam) must be added to the gradient
 * before ready, 1/P of it on each of P ranks. Adam's steps do not depend on the scale of the loss:
 * divide gradients by that scale before ready. With such slots, a saved state includes this rank's
 * moments of the optimiser.
 *
 * Results. Functions return DPTRAIN_COMM_OK or one of the codes below, which are dptrain's exit
 * codes, and leave a one-sentence message in dptrain_comm_last_error(). After DPTRAIN_COMM_NETWORK
 * the exchange is unusable, and other ranks may be waiting: end with dptrain_comm_abort(), never
 * with MPI_Finalize.
 *
 * Ranks. All ranks make the same calls in the same order; only the order of dptrain_comm_ready is
 * free.
 *
 * Threads. Only one thread at a time may call these functions. A thread of the exchange calls MPI
 * while the exchange exists. Therefore MPI must have been started with MPI_THREAD_SERIALIZED or a
 * higher level. MPI_THREAD_MULTIPLE is needed if the program uses MPI itself meanwhile, or creates
 * several exchanges. Several exchanges are independent of each other, but all ranks must create
 * them in the same order. Before it starts MPI, dptrain_comm_init sets environment variables of
 * Open MPI that slow networks need (comm/mpi/runtime/mpi_runtime.hpp lists them). A program that
 * starts MPI itself must set them itself.
 *
 * Memory. The library copies strings and arrays that it is given. Values and strings that it
 * returns belong to the library: values live as long as the exchange, a string until the next
 * call. */
#ifndef DPTRAIN_COMM_H
#define DPTRAIN_COMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version that a program was compiled with; dptrain_comm_version() returns the version that it
 * runs with. Within a major version, functions may be added and structs that begin with
 * struct_bytes may grow at their end; nothing else changes. A program works with this library and
 * every later one of the same major version. */
#define DPTRAIN_COMM_VERSION "0.1.0"

enum {
  DPTRAIN_COMM_OK = 0,
  DPTRAIN_COMM_USAGE = 2,    /* invalid argument, codec or topology */
  DPTRAIN_COMM_DATA = 3,     /* a saved state that does not fit */
  DPTRAIN_COMM_NETWORK = 4,  /* MPI, or a silent or lost rank */
  DPTRAIN_COMM_MEMORY = 5,   /* out of memory */
  DPTRAIN_COMM_INTERNAL = 70 /* a bug of the library */
};

/* The program's optimiser, as PyTorch defines it. */
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
  int32_t is_1d; /* 1 for biases and normalisation scales, which do not tolerate coarse bins */
  int32_t reserved;
} dptrain_comm_slot;

/* dptrain_comm_defaults(&options) sets all fields to their defaults. */
typedef struct {
  uint64_t struct_bytes; /* sizeof(dptrain_comm_options) of the caller */
  /* A codec, as for dptrain --compress: "none", "q8", "ecq:bits=0.35", "auto", "fewest", ...
   * Default: "auto". */
  const char* compress;
  /* "ring", "direct", "grid", "tree", "ps" or "hierarchical". Default NULL: the codec's own, mostly
   * "ring". */
  const char* topology;
  /* Names of slots that are sent in fp32, separated by commas, with * and ?. Default: NULL. */
  const char* exact;
  uint64_t seed; /* for codecs that draw random numbers; default: 0 */
  /* The size of buckets in bytes of fp32; slots are sent together in buckets. Default 0: chosen for
   * the network. */
  uint64_t bucket_bytes;
  double timeout_s; /* the time limit for a silent rank; default: 60 */
  /* The bandwidth of the slowest link of a rank. Default 0: dptrain_comm_create measures it, which
   * takes 1-2 s. */
  double link_bit_per_s;
  /* The name of a new file for dptrain_comm_write_trace. Default NULL: no trace. */
  const char* trace;
  /* The trace shows trace_steps steps (1 to 1000; default: 20) after the first trace_first steps
   * (default: 5) of this exchange. */
  uint64_t trace_first;
  uint64_t trace_steps;
  /* With DPTRAIN_COMM_SGD or DPTRAIN_COMM_ADAM, "auto" exchanges the optimiser's steps, and
   * velocity= is allowed. With the default, DPTRAIN_COMM_ANY_OPTIMIZER, "auto" sends 2 bits a value
   * or more, which suits any optimiser. */
  int32_t optimizer;
  int32_t has_nesterov; /* for SGD: 1 or 0; default: 0 */
  double momentum;      /* for SGD, 0 to below 1; default: 0.9 */
  double beta1, beta2;  /* for Adam, 0 to below 1; default: 0.9 and 0.999 */
  double epsilon;       /* for Adam, above 0; default: 1e-8 */
  /* Codecs for single slots, which are selected by name, as in "wte.*=q8;*bias=none". Names may
   * contain * and ?, and the last match wins. "auto", "ecq" and other codecs with a rate or a
   * topology of their own are not allowed. Default: NULL. */
  const char* codecs;
  /* Every group of `shards` consecutive ranks holds one model, divided into parts. Rank r exchanges
   * with the ranks that have the same part (the same rank modulo shards), and rank numbers in
   * messages count only these ranks. Default 1: each rank has the whole model. */
  uint64_t shards;
} dptrain_comm_options;

/* This rank's costs since the last call. */
typedef struct {
  uint64_t struct_bytes; /* the caller sets it: sizeof(dptrain_comm_statistics) */
  uint64_t sent_bytes, received_bytes;
  double comm_s;           /* the time with a bucket in flight; its parts are: */
  double encode_s;         /* in encoders */
  double decode_s;         /* in decoders */
  double peer_wait_s;      /* waiting for a rank that had not begun */
  double wire_s;           /* the rest */
  double bits;             /* bits a value in the last step of ecq and auto; NAN for other codecs */
  uint64_t skipped_steps;  /* steps in which some rank's gradient was not finite */
  uint64_t clamped_values; /* clamped by fp16, whose largest value is 65504 */
} dptrain_comm_statistics;

/* This rank's costs of a bucket, in the period of the last dptrain_comm_get_statistics(). The
 * squares are sums over the examined values, so that the ranks' squares can be added: an encoder's
 * relative error is sqrt(error_squares / value_squares). */
typedef struct {
  uint64_t struct_bytes; /* the caller sets it: sizeof(dptrain_comm_bucket_statistics) */
  uint64_t values;       /* of the bucket */
  uint64_t sent_bytes;
  double encode_s, decode_s, peer_wait_s, wire_s;
  double error_squares, value_squares; /* of the dropped parts, and of the encoders' input */
  double residual_squares;             /* of the whole residual, now */
} dptrain_comm_bucket_statistics;

/* The last training step of codecs with a rate (ecq:bits=, ecq:error=, "auto"). Values that do not
 * apply are NAN. */
typedef struct {
  uint64_t struct_bytes;           /* the caller sets it: sizeof(dptrain_comm_rate) */
  double planned_bits;             /* bits a value */
  double partial_bits, total_bits; /* sent bits a value: of partial sums, and of the sum */
  double partial_step, total_step; /* the quantiser's step sizes for the next step */
  double link_bytes_per_s;         /* "auto": the bandwidth of this rank's link */
  double hidden_bits;              /* "auto": the bits that hide behind this rank's computation */
  /* Of this rank's encodes, as measured last: norm(residual) / norm(encoded values), and
   * norm(residual) / norm(gradient). */
  double relative_error, residual_growth;
  double guard_factor;   /* multiplies the bits; above 1 while a residual is too large */
  double wished_bits;    /* "auto": the least of all ranks' hidden_bits; plans follow it */
  double binding_bucket; /* "auto": from this bucket on, this rank's link has no time left */
} dptrain_comm_rate;

/* Starts MPI if the program has not, and duplicates MPI_COMM_WORLD. Collective. Returns
 * DPTRAIN_COMM_USAGE if another launcher's variables (torchrun's WORLD_SIZE, PMI_SIZE,
 * SLURM_STEP_NUM_TASKS) disagree with MPI about the number of processes, if a rank has started this
 * process, or if another process has this rank's identity, as with torchrun inside mpirun. */
int dptrain_comm_init(void);
/* The same for the ranks of a communicator, passed as MPI_Comm_c2f(comm). MPI must be running. A
 * launcher's variables may count either the processes of MPI or those of the communicator. */
int dptrain_comm_init_with(int32_t fortran_handle);
/* Ends MPI if dptrain_comm_init has started it. Collective. */
int dptrain_comm_finalize(void);
/* Prints the reason (NULL: nothing) and ends all ranks with that exit code. Does not return. */
void dptrain_comm_abort(int exit_code, const char* reason);
int dptrain_comm_rank(void); /* -1 before init */
int dptrain_comm_size(void);
/* Replaces all ranks' bytes by rank 0's, for example the parameters at the start. Collective. Not
 * allowed in the middle of an exchange's step. */
int dptrain_comm_broadcast(void* bytes, size_t size);

/* Sets all fields that a struct of that size has. The macro dptrain_comm_defaults(options) passes
 * the size of the header that the program was compiled with. */
void dptrain_comm_defaults_sized(dptrain_comm_options* options, size_t struct_bytes);
/* For programs that were compiled with a header in which the struct ended before `codecs`. Newer
 * programs use the macro of the same name instead. */
void dptrain_comm_defaults(dptrain_comm_options* options);
#define dptrain_comm_defaults(options) dptrain_comm_defaults_sized((options), sizeof *(options))
/* Checks each option by itself. Not collective; may be called before init. */
int dptrain_comm_check(const dptrain_comm_options* options);
/* Collective. All ranks must have the same version of this library and pass the same slots and
 * options, except for the trace's name. If they do not, or if one rank's arguments are invalid, all
 * ranks return the same error. options: NULL for the defaults. */
int dptrain_comm_create(const dptrain_comm_slot* slots, size_t count,
                        const dptrain_comm_options* options, dptrain_comm** exchange);
/* Does nothing for NULL. If an exchange was destroyed in the middle of a step, or after an error in
 * a step, a program of several ranks cannot create another exchange, because messages of that step
 * may still arrive. */
void dptrain_comm_destroy(dptrain_comm* exchange);

/* The slot's rows x columns floats; NULL for an invalid index. Write them between begin_step and
 * ready, read them between finish_step and the next begin_step. */
float* dptrain_comm_values(dptrain_comm* exchange, size_t slot);
/* 1 if that slot's values are steps of the optimiser (see Steps above); 0 if they are gradients, or
 * for an invalid index. */
int dptrain_comm_makes_step(dptrain_comm* exchange, size_t slot);
/* progress: the fraction of the training that is done, 0 to 1, so that ecq:bits=X spends more bits
 * at the beginning; below 0: not known. */
int dptrain_comm_begin_step(dptrain_comm* exchange, double progress);
/* Reports that the slot's values are final. Call it once a step for every slot, in any order. In
 * dptrain_comm_create, list the slots in the order in which they become ready. */
int dptrain_comm_ready(dptrain_comm* exchange, size_t slot);
/* all_finite becomes 1, or 0 if some rank's values were not finite. In the second case, the values
 * are not sums, every rank must skip the step, and residuals that were delivered in it are sent
 * again later. Rank 0 reports the first such step of an exchange on stderr, with the rank and the
 * slot. Every rank reports its first step in which fp16 clamped values. A loss scaler does not
 * notice clamped values, because they are finite. dptrain_comm_statistics counts skipped steps and
 * clamped values. */
int dptrain_comm_finish_step(dptrain_comm* exchange, int* all_finite);
/* Call it instead of dptrain_comm_begin_step to exchange the parameters' changes over several
 * training steps (local SGD, DiLoCo). All slots' values must be written before this call, because
 * codecs with a rate examine the values: the rate of one round does not predict the rate of the
 * next. From the first round on, every exchange must be a round. */
int dptrain_comm_begin_round(dptrain_comm* exchange, double progress);

int dptrain_comm_get_statistics(dptrain_comm* exchange, dptrain_comm_statistics* statistics);
size_t dptrain_comm_bucket_count(dptrain_comm* exchange); /* 0 after an error */
int dptrain_comm_get_bucket_statistics(dptrain_comm* exchange, size_t bucket,
                                       dptrain_comm_bucket_statistics* statistics);
int dptrain_comm_get_rate(dptrain_comm* exchange, dptrain_comm_rate* rate);
/* For ecq:bits=: sets the mean number of bits a value from the next step on. Call it between steps,
 * with the same value on all ranks. The bits that are sent adapt within a few steps. A saved state
 * does not include this number. */
int dptrain_comm_set_bits(dptrain_comm* exchange, double bits);
/* The loss has a new scale from the next step on, as with PyTorch's GradScaler: factor is the new
 * scale divided by the old one. Residuals, the quantiser's step sizes and thresholds are scaled by
 * the factor, too, so that training steps deliver what they would have delivered with a constant
 * scale. Collective, with the same factor; between steps. A saved state includes the scale. */
int dptrain_comm_scale_residual(dptrain_comm* exchange, double factor);
/* Rank 0 writes the trace requested in the options: all ranks' activities on one clock, for
 * ui.perfetto.dev and chrome://tracing. Collective, between steps. Call it after the last traced
 * step; if called earlier, the trace ends there. Fails on all ranks if rank 0 cannot write the
 * file; a later call tries again. */
int dptrain_comm_write_trace(dptrain_comm* exchange);
/* Gathers `size` bytes from each rank, for example statistics, in `all` on rank 0, in the order of
 * ranks. Other ranks may pass NULL for `all`. With shards, the bytes of the ranks that exchange
 * with each other are gathered on the lowest of them. Collective; between steps. */
int dptrain_comm_gather(dptrain_comm* exchange, const void* bytes, size_t size, void* all);
/* A line for each bucket: slots, values, codec, topology. NULL after an error. */
const char* dptrain_comm_describe(dptrain_comm* exchange);
/* Checks that all ranks hold the same bits of these values; otherwise returns
 * DPTRAIN_COMM_INTERNAL, and the message names the ranks that differ. Collective; between steps. */
int dptrain_comm_compare(dptrain_comm* exchange, const float* values, size_t count);

/* The exchange's state for checkpoints: residuals and whatever else a codec keeps from step to
 * step. Each rank saves and loads its own state, between steps. A state fits an exchange with the
 * same slots, options and number of ranks, on the rank that has saved it. Loading any other state,
 * or a damaged one, returns DPTRAIN_COMM_DATA. Load states before the first step: that step fails
 * on all ranks if their states are from different steps. If only one rank loads a state later, the
 * next step fails with DPTRAIN_COMM_DATA. */
size_t dptrain_comm_state_bytes(dptrain_comm* exchange); /* 0 after an error */
int dptrain_comm_save_state(dptrain_comm* exchange, void* bytes, size_t size);
int dptrain_comm_load_state(dptrain_comm* exchange, const void* bytes, size_t size);
/* Continues from states that dptrain_comm_load_state refuses. After a change of slots, pass this
 * rank's own state (count 1). After a change of the number of ranks, pass the states of all ranks
 * of the earlier run, in the order of ranks, on every rank. Slots are matched by name and shape.
 * The saved residual of rank r is added to the residual of rank r modulo the present number of
 * ranks. An optimiser's moments are redistributed so that their sum over ranks stays the same. New
 * slots begin at zero, and residuals of missing slots are dropped. Call it between steps, on all
 * ranks. With the topology "hierarchical" or with shards, the number of ranks must not have changed
 * (DPTRAIN_COMM_USAGE). */
int dptrain_comm_merge_states(dptrain_comm* exchange, const void* const* states,
                              const size_t* sizes, size_t count);

/* The message of this thread's last failed call; empty before the first. */
const char* dptrain_comm_last_error(void);
const char* dptrain_comm_version(void);

#ifdef __cplusplus
}
#endif

#endif
