/* Stands before the C library (LD_PRELOAD) and puts one fault into a process.
 *
 * fault_set("CALL\nPATTERN\nAT\nACTION\nARGUMENT\nTIMES\nLOG") arms it; the environment variable FAULT does so from the start.
 *   CALL      open, read, write, copy (to), from (the source of a copy), mmap, fsync, rename, mkdir, remove, list, stat, lock
 *             or *
 *   PATTERN   of absolute paths, as fnmatch(3) has it; * matches / too
 *   AT        the call, counted from 1, that ACTION is for; 0 for none
 *   ACTION    fail (ARGUMENT an errno), kill (ARGUMENT a signal, sent before the call is made) or
 *             space (ARGUMENT:ERRNO, bytes that can still be written or copied there; then the errno)
 *   TIMES     calls that fail from AT on, 0 for all
 *   LOG       a file that gets a line "CALL PATH" for each call that matches; empty for none
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char call_[16], pattern_[PATH_MAX], action_[8];
static long at_, argument_, times_;
static int full_;
static atomic_int armed_, log_ = -1;
static atomic_long count_, space_;

void fault_set(const char *spec) {
    char text[2 * PATH_MAX], *rest = text, *field[7] = {0};
    armed_ = 0;
    snprintf(text, sizeof text, "%s", spec);
    for (int i = 0; i < 7; i++) field[i] = strsep(&rest, "\n");
    if (!field[6]) return;
    snprintf(call_, sizeof call_, "%s", field[0]);
    snprintf(pattern_, sizeof pattern_, "%s", field[1]);
    at_ = atol(field[2]);
    snprintf(action_, sizeof action_, "%s", field[3]);
    char *colon = strchr(field[4], ':');
    full_ = colon ? atoi(colon + 1) : 0;
    argument_ = atol(field[4]);
    times_ = atol(field[5]);
    count_ = 0;
    space_ = argument_;
    log_ = field[6][0] ? (int)syscall(SYS_openat, AT_FDCWD, field[6], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    armed_ = 1;
}

__attribute__((constructor)) static void from_environment(void) {
    const char *spec = getenv("FAULT");
    if (spec) fault_set(spec);
}

static void of_fd(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[n > 0 ? n : 0] = 0;
}

static void of_name(int folder, const char *name, char *path) {
    char base[PATH_MAX];
    if (!name) name = "";
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    if (folder == AT_FDCWD) {
        if (syscall(SYS_getcwd, base, sizeof base) < 0) base[0] = 0;
    } else {
        of_fd(folder, base);
    }
    if (snprintf(path, PATH_MAX, "%s/%s", base, name) < 0) path[0] = 0;
}

static int wanted(const char *call, const char *path) {
    return armed_ && (call_[0] == '*' || !strcmp(call_, call)) && path[0] == '/' && !fnmatch(pattern_, path, 0);
}

/* Counts a call; 0 where it may be made, else the errno that it fails with. */
static int hit(const char *call, const char *path) {
    if (!wanted(call, path)) return 0;
    if (log_ >= 0) {
        char line[PATH_MAX + 32];
        int n = snprintf(line, sizeof line, "%s %s\n", call, path);
        syscall(SYS_write, log_, line, (size_t)n);
    }
    long n = atomic_fetch_add(&count_, 1) + 1;
    if (!at_ || n < at_ || !strcmp(action_, "space")) return 0;
    if (times_ && n >= at_ + times_) return 0;
    if (!strcmp(action_, "fail")) return (int)argument_;
    if (n == at_ && !strcmp(action_, "kill")) syscall(SYS_kill, getpid(), (int)argument_);
    return 0;
}

/* How many of `count` bytes still fit; -1 with errno where none does. */
static ssize_t fits(int fd, size_t count) {
    char path[PATH_MAX];
    if (!armed_ || strcmp(action_, "space")) return (ssize_t)count;
    of_fd(fd, path);
    if (fnmatch(pattern_, path, 0)) return (ssize_t)count;
    long left = space_;
    if (left <= 0 && count) {
        errno = full_;
        return -1;
    }
    return (long)count < left ? (ssize_t)count : left;
}

static void took(int fd, ssize_t count) {
    char path[PATH_MAX];
    if (!armed_ || strcmp(action_, "space") || count <= 0) return;
    of_fd(fd, path);
    if (!fnmatch(pattern_, path, 0)) space_ -= count;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSE(bad, expression) \
    do { int no_ = (expression); if (no_) { errno = no_; return bad; } } while (0)
#define NAMED(bad, call, folder, name) \
    do { if (armed_) { char path_[PATH_MAX]; of_name(folder, name, path_); REFUSE(bad, hit(call, path_)); } } while (0)
#define OPENED(bad, call, fd) \
    do { if (armed_) { char path_[PATH_MAX]; of_fd(fd, path_); REFUSE(bad, hit(call, path_)); } } while (0)

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

#define OPEN(name) int name(const char *path, int flags, ...) { \
    MODE(flags) NAMED(-1, "open", AT_FDCWD, path); return NEXT(name)(path, flags, mode); }
#define OPENAT(name) int name(int folder, const char *path, int flags, ...) { \
    MODE(flags) NAMED(-1, "open", folder, path); return NEXT(name)(folder, path, flags, mode); }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int fd, void *to, size_t n) { OPENED(-1, "read", fd); return NEXT(read)(fd, to, n); }
#define PREAD(name, offset_t) ssize_t name(int fd, void *to, size_t n, offset_t at) { \
    OPENED(-1, "read", fd); return NEXT(name)(fd, to, n, at); }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
#define PREADV(name, offset_t) ssize_t name(int fd, const struct iovec *to, int n, offset_t at) { \
    OPENED(-1, "read", fd); return NEXT(name)(fd, to, n, at); }
PREADV(preadv, off_t)
PREADV(preadv64, off64_t)
#define PREADV2(name, offset_t) ssize_t name(int fd, const struct iovec *to, int n, offset_t at, int flags) { \
    OPENED(-1, "read", fd); return NEXT(name)(fd, to, n, at, flags); }
PREADV2(preadv2, off_t)
PREADV2(preadv64v2, off64_t)

ssize_t write(int fd, const void *from, size_t n) {
    OPENED(-1, "write", fd);
    ssize_t room = fits(fd, n);
    if (room < 0) return -1;
    ssize_t done = NEXT(write)(fd, from, (size_t)room);
    took(fd, done);
    return done;
}
#define PWRITE(name, offset_t) ssize_t name(int fd, const void *from, size_t n, offset_t at) { \
    OPENED(-1, "write", fd); \
    ssize_t room = fits(fd, n); \
    if (room < 0) return -1; \
    ssize_t done = NEXT(name)(fd, from, (size_t)room, at); \
    took(fd, done); \
    return done; }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t copy_file_range(int in, off64_t *at, int out, off64_t *to, size_t n, unsigned flags) {
    OPENED(-1, "from", in);
    OPENED(-1, "copy", out);
    ssize_t room = fits(out, n);
    if (room < 0) return -1;
    ssize_t done = NEXT(copy_file_range)(in, at, out, to, (size_t)room, flags);
    took(out, done);
    return done;
}
#define SENDFILE(name, offset_t) ssize_t name(int out, int in, offset_t *at, size_t n) { \
    OPENED(-1, "from", in); \
    OPENED(-1, "copy", out); \
    ssize_t room = fits(out, n); \
    if (room < 0) return -1; \
    ssize_t done = NEXT(name)(out, in, at, (size_t)room); \
    took(out, done); \
    return done; }
ssize_t sendfile(int out, int in, off_t *at, size_t n);
ssize_t sendfile64(int out, int in, off64_t *at, size_t n);
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

void *mmap(void *, size_t, int, int, int, off_t);
void *mmap64(void *, size_t, int, int, int, off64_t);
#define MMAP(name, offset_t) void *name(void *near, size_t n, int can, int how, int fd, offset_t at) { \
    if (fd >= 0) OPENED((void *)-1, "mmap", fd); \
    return NEXT(name)(near, n, can, how, fd, at); }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

int fsync(int fd) { OPENED(-1, "fsync", fd); return NEXT(fsync)(fd); }
int fdatasync(int fd) { OPENED(-1, "fsync", fd); return NEXT(fdatasync)(fd); }

int rename(const char *old, const char *new) {
    NAMED(-1, "rename", AT_FDCWD, new);
    return NEXT(rename)(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
    NAMED(-1, "rename", to, new);
    return NEXT(renameat)(from, old, to, new);
}
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    NAMED(-1, "rename", to, new);
    return NEXT(renameat2)(from, old, to, new, flags);
}

int mkdir(const char *path, mode_t mode) { NAMED(-1, "mkdir", AT_FDCWD, path); return NEXT(mkdir)(path, mode); }
int mkdirat(int folder, const char *path, mode_t mode) {
    NAMED(-1, "mkdir", folder, path);
    return NEXT(mkdirat)(folder, path, mode);
}
int unlink(const char *path) { NAMED(-1, "remove", AT_FDCWD, path); return NEXT(unlink)(path); }
int unlinkat(int folder, const char *path, int flags) {
    NAMED(-1, "remove", folder, path);
    return NEXT(unlinkat)(folder, path, flags);
}
int rmdir(const char *path) { NAMED(-1, "remove", AT_FDCWD, path); return NEXT(rmdir)(path); }

struct __dirstream;
struct __dirstream *opendir(const char *);
struct __dirstream *fdopendir(int);
struct __dirstream *opendir(const char *path) { NAMED(NULL, "list", AT_FDCWD, path); return NEXT(opendir)(path); }
struct __dirstream *fdopendir(int fd) { OPENED(NULL, "list", fd); return NEXT(fdopendir)(fd); }

int flock(int, int);
int flock(int fd, int how) { OPENED(-1, "lock", fd); return NEXT(flock)(fd, how); }

#define STAT(name, what) int name(const char *restrict path, struct what *restrict to) { \
    NAMED(-1, "stat", AT_FDCWD, path); return NEXT(name)(path, to); }
STAT(stat, stat)
STAT(lstat, stat)
STAT(stat64, stat64)
STAT(lstat64, stat64)
int fstat(int fd, struct stat *to) { OPENED(-1, "stat", fd); return NEXT(fstat)(fd, to); }
int fstat64(int fd, struct stat64 *to) { OPENED(-1, "stat", fd); return NEXT(fstat64)(fd, to); }
int fstatat(int folder, const char *restrict path, struct stat *restrict to, int flags) {
    NAMED(-1, "stat", folder, path);
    return NEXT(fstatat)(folder, path, to, flags);
}
int fstatat64(int folder, const char *restrict path, struct stat64 *restrict to, int flags) {
    NAMED(-1, "stat", folder, path);
    return NEXT(fstatat64)(folder, path, to, flags);
}
