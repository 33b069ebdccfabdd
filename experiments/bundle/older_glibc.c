/* Functions that came with later versions of glibc.

   For the bundle: those of 2.35 and 2.36, for machines with glibc 2.34 or 2.35 (RHEL 9, Ubuntu 22.04).

   Debian 12's libgcc, libstdc++ and libevent call these, and nothing else that is newer than 2.34. make_bundle.sh
   adds this library to the bundle and removes the version from those references, so that the loader accepts either
   glibc's function or this one. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>

/* glibc 2.36: random bytes. Aborts where the kernel gives none, as glibc's does. */
void arc4random_buf(void* bytes, size_t count) {
  unsigned char* at = bytes;
  while (count > 0) {
    const ssize_t got = getrandom(at, count, 0);
    if (got < 0) {
      abort();
    }
    at += got;
    count -= (size_t)got;
  }
}

uint32_t arc4random(void) {
  uint32_t value;
  arc4random_buf(&value, sizeof value);
  return value;
}

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "dl_find_object has another member on this processor (DLFO_STRUCT_HAS_EH_DBASE)"
#endif

#ifdef DP_GLIBC_2_28 /* for wheels, which are linked with the functions of this file (DP_PORTABLE) */
#include <pthread.h>
#include <time.h>

/* glibc 2.32: whether the process has one thread, so that libstdc++ may count references without atomic operations. */
char __libc_single_threaded = 0;

/* glibc 2.30: waits until a time of that clock. May return too early, as every wait for a condition. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  struct timespec now, there;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &there) != 0) {
    return EINVAL;
  }
  const long second = 1000000000;
  there.tv_sec += until->tv_sec - now.tv_sec;
  there.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (there.tv_nsec < 0) {
    there.tv_nsec += second;
    --there.tv_sec;
  } else if (there.tv_nsec >= second) {
    there.tv_nsec -= second;
    ++there.tv_sec;
  }
  if (there.tv_sec < 0) {
    there = (struct timespec){0, 0};
  }
  return pthread_cond_timedwait(condition, mutex, &there);
}

/* glibc 2.29 has versions of these that do not set errno by the rules of SVID. The older ones give the same values. */
#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif
#define OLDER_FUNCTION(name, parameters, ...)                       \
  __asm__(".symver older_" #name "," #name "@" FIRST);              \
  extern double older_##name parameters;                            \
  double name parameters { return older_##name(__VA_ARGS__); }
OLDER_FUNCTION(exp, (double x), x)
OLDER_FUNCTION(exp2, (double x), x)
OLDER_FUNCTION(log, (double x), x)
OLDER_FUNCTION(log2, (double x), x)
OLDER_FUNCTION(pow, (double x, double y), x, y)
#endif

/* As <dlfcn.h> of glibc 2.35 has it. */
struct found_object {
  unsigned long long flags;
  void* map_start;
  void* map_end;
  struct link_map* map; /* no caller here reads it */
  void* eh_frame;       /* the segment PT_GNU_EH_FRAME */
  unsigned long long reserved[7];
};

struct search {
  uintptr_t address;
  struct found_object* result;
};

static int look(struct dl_phdr_info* info, size_t size, void* data) {
  (void)size;
  struct search* search = data;
  uintptr_t first = UINTPTR_MAX, end = 0;
  const void* eh_frame = NULL;
  int is_here = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* segment = &info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type == PT_LOAD) {
      is_here |= search->address >= begin && search->address < begin + segment->p_memsz;
      first = begin < first ? begin : first;
      end = begin + segment->p_memsz > end ? begin + segment->p_memsz : end;
    } else if (segment->p_type == PT_GNU_EH_FRAME) {
      eh_frame = (const void*)begin;
    }
  }
  if (!is_here || eh_frame == NULL) {
    return 0;
  }
  *search->result = (struct found_object){
      .map_start = (void*)first, .map_end = (void*)end, .eh_frame = (void*)eh_frame};
  return 1;
}

/* glibc 2.35: the object that holds `address` and its table of stack frames. 0, or -1 if there is none. The C name
   differs, since a newer <dlfcn.h> declares the function with a struct that an older one lacks. */
int find_object(void* address, struct found_object* result) __asm__("_dl_find_object");
int find_object(void* address, struct found_object* result) {
  struct search search = {(uintptr_t)address, result};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
