/* A disk that is watched and fails on request. Loaded before libc with LD_PRELOAD, and idle until a process calls
 * `disk_watch`. From then on every change of a file below one folder goes into a trace, in the order in which it
 * happened, and the n-th change of a kind can fail, or end the process half way. System calls are made directly,
 * so that nothing here comes back to itself. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { MARK = 1, OPEN = 2, WRITE = 3, TRUNCATE = 4, SYNC = 5, UNLINK = 6, RENAME = 7 };
enum { IS_NEW = 1, HAS_FAILED = 2 };
enum { ONCE = 0, FOR_GOOD = 1, HALF_THEN_DIE = 2 };

struct record {
    uint32_t kind;
    uint32_t flags;
    uint64_t file; /* the inode */
    uint64_t offset;
    uint64_t length; /* of what follows: bytes written, a path, two paths with a NUL between, or a mark */
};

#define FILES 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int trace = -1;
static char folder[PATH_MAX];
static uint64_t inodes[FILES]; /* by descriptor; 0 for what is not watched */

static unsigned fault_kinds; /* bits of the kinds above */
static long fault_place;
static int fault_errno, fault_mode;
static long seen, hits;

static long clock_shift;

static void record(uint32_t kind, uint32_t flags, uint64_t file, uint64_t offset, const void *data, uint64_t length) {
    struct record head = {kind, flags, file, offset, length};
    if (syscall(SYS_write, trace, &head, sizeof head) != (long)sizeof head) abort();
    while (length > 0) {
        long written = syscall(SYS_write, trace, data, length);
        if (written <= 0) abort();
        data = (const char *)data + written;
        length -= (uint64_t)written;
    }
}

/* Whether this call is to fail. */
static int fails(unsigned kind) {
    if (fault_place <= 0 || !(fault_kinds & (1u << kind))) return 0;
    seen++;
    if (seen != fault_place && !(seen > fault_place && fault_mode == FOR_GOOD)) return 0;
    hits++;
    errno = fault_errno;
    return 1;
}

static uint64_t watched(int descriptor) {
    return trace >= 0 && descriptor >= 0 && descriptor < FILES ? inodes[descriptor] : 0;
}

static int is_below(const char *path) {
    size_t length = strlen(folder);
    return trace >= 0 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* The tests' side. */

int disk_watch(const char *path, const char *into) {
    pthread_mutex_lock(&lock);
    strncpy(folder, path, sizeof folder - 1);
    memset(inodes, 0, sizeof inodes);
    fault_place = seen = hits = 0;
    trace = (int)syscall(SYS_openat, AT_FDCWD, into, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    pthread_mutex_unlock(&lock);
    return trace;
}

void disk_fail(unsigned kinds, long place, int number, int mode) {
    pthread_mutex_lock(&lock);
    fault_kinds = kinds;
    fault_place = place;
    fault_errno = number;
    fault_mode = mode;
    seen = hits = 0;
    pthread_mutex_unlock(&lock);
}

long disk_faults(void) { return hits; }

void disk_mark(const char *text) {
    pthread_mutex_lock(&lock);
    if (trace >= 0) record(MARK, 0, 0, 0, text, strlen(text));
    pthread_mutex_unlock(&lock);
}

void clock_shift_by(long seconds) { clock_shift = seconds; }

/* What the process calls. */

static int open_file(int folder_descriptor, const char *path, int flags, mode_t mode) {
    if (folder_descriptor != AT_FDCWD || !is_below(path))
        return (int)syscall(SYS_openat, folder_descriptor, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat found;
    int is_new = (flags & O_CREAT) && syscall(SYS_faccessat, AT_FDCWD, path, F_OK) != 0;
    int descriptor = -1;
    if (!is_new || !fails(OPEN)) {
        descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
        if (descriptor >= 0 && descriptor < FILES && fstat(descriptor, &found) == 0) {
            inodes[descriptor] = (uint64_t)found.st_ino;
            record(OPEN, is_new ? IS_NEW : 0, (uint64_t)found.st_ino, 0, path, strlen(path));
            if (flags & O_TRUNC) record(TRUNCATE, 0, (uint64_t)found.st_ino, 0, "", 0);
        }
    }
    pthread_mutex_unlock(&lock);
    return descriptor;
}

#define MODE_OF(flags)                                      \
    mode_t mode = 0;                                        \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                       \
        va_start(rest, flags);                              \
        mode = va_arg(rest, mode_t);                        \
        va_end(rest);                                       \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}

int openat(int descriptor, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(descriptor, path, flags, mode);
}

int openat64(int descriptor, const char *path, int flags, ...) {
    MODE_OF(flags)
    return open_file(descriptor, path, flags, mode);
}

int close(int descriptor) {
    if (!watched(descriptor)) return (int)syscall(SYS_close, descriptor);
    pthread_mutex_lock(&lock);
    inodes[descriptor] = 0;
    int outcome = (int)syscall(SYS_close, descriptor);
    pthread_mutex_unlock(&lock);
    return outcome;
}

static ssize_t write_file(int descriptor, const void *data, size_t size, off_t offset, int is_placed) {
    uint64_t file = watched(descriptor);
    if (!file) {
        return is_placed ? syscall(SYS_pwrite64, descriptor, data, size, offset)
                         : syscall(SYS_write, descriptor, data, size);
    }
    pthread_mutex_lock(&lock);
    ssize_t outcome = -1;
    if (!is_placed) offset = syscall(SYS_lseek, descriptor, 0, SEEK_CUR);
    if (!fails(WRITE)) {
        outcome = is_placed ? syscall(SYS_pwrite64, descriptor, data, size, offset)
                            : syscall(SYS_write, descriptor, data, size);
        if (outcome > 0) record(WRITE, 0, file, (uint64_t)offset, data, (uint64_t)outcome);
    } else if (fault_mode == HALF_THEN_DIE) {
        syscall(SYS_pwrite64, descriptor, data, size / 2, offset);
        kill(getpid(), SIGKILL);
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

ssize_t write(int descriptor, const void *data, size_t size) { return write_file(descriptor, data, size, 0, 0); }
ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    return write_file(descriptor, data, size, offset, 1);
}
ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t offset) {
    return write_file(descriptor, data, size, offset, 1);
}

static int change(int descriptor, uint32_t kind, long call, off_t length) {
    uint64_t file = watched(descriptor);
    if (!file) return (int)syscall(call, descriptor, length);
    pthread_mutex_lock(&lock);
    int outcome = -1;
    if (!fails(kind)) {
        outcome = (int)syscall(call, descriptor, length);
        if (outcome == 0) record(kind, 0, file, (uint64_t)length, "", 0);
    } else {
        record(kind, HAS_FAILED, file, (uint64_t)length, "", 0);
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

int fsync(int descriptor) { return change(descriptor, SYNC, SYS_fsync, 0); }
int fdatasync(int descriptor) { return change(descriptor, SYNC, SYS_fdatasync, 0); }
int ftruncate(int descriptor, off_t length) { return change(descriptor, TRUNCATE, SYS_ftruncate, length); }
int ftruncate64(int descriptor, off_t length) { return change(descriptor, TRUNCATE, SYS_ftruncate, length); }

int unlink(const char *path) {
    if (!is_below(path)) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    pthread_mutex_lock(&lock);
    int outcome = -1;
    if (!fails(UNLINK)) {
        outcome = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
        if (outcome == 0) record(UNLINK, 0, 0, 0, path, strlen(path));
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

int rename(const char *from, const char *to) {
    if (!is_below(from) && !is_below(to)) return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    char both[2 * PATH_MAX];
    size_t first = strlen(from), second = strlen(to);
    pthread_mutex_lock(&lock);
    int outcome = -1;
    if (!fails(RENAME)) {
        outcome = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
        if (outcome == 0) {
            memcpy(both, from, first + 1);
            memcpy(both + first + 1, to, second);
            record(RENAME, 0, 0, 0, both, first + 1 + second);
        }
    }
    pthread_mutex_unlock(&lock);
    return outcome;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int outcome = (int)syscall(SYS_clock_gettime, which, now);
    if (outcome == 0 && which == CLOCK_REALTIME) now->tv_sec += clock_shift;
    return outcome;
}
