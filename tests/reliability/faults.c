/* A layer between a process and the system calls by which it changes files. For tests only.
 *
 * Loaded with LD_PRELOAD, it counts every call that changes something below one folder. It can write
 * all of them to a log, with their data, or do harm at one of them: kill the process, write half and
 * kill it, fail once, or behave like a disk that is full from then on.
 *
 * What it does not see: calls that the C library makes for itself (fopen, fwrite), and memory that is
 * mapped and shared. It logs the latter as "map". faults.py checks with strace that nothing else is
 * missed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, RECORD, KILL, TEAR, FAIL, FULL };
enum { OTHER, GROWS }; /* whether a full disk refuses it */

static int mode = OFF, log_to = -1;
static long at;
static char root[PATH_MAX];
static volatile long *count; /* shared with the parent: it survives the process */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* Called through ctypes in the process that is to be harmed. */
void faults_start(const char *folder, int how, long number, int log_file) {
    snprintf(root, sizeof root, "%s", folder);
    *count = 0, at = number, log_to = log_file, mode = how;
}

long faults_count(void) { return *count; }

/* ── paths ── */

static int inside(const char *path) {
    size_t n = strlen(root);
    return mode != OFF && strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

static void of_handle(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = 0;
}

static void absolute(int folder, const char *name, char *path) {
    path[0] = 0;
    if (mode == OFF || name == NULL) return;
    if (name[0] != '/') {
        if (folder == AT_FDCWD) {
            if (getcwd(path, PATH_MAX) == NULL) path[0] = 0;
        } else
            of_handle(folder, path);
        strncat(path, "/", PATH_MAX - strlen(path) - 1);
    }
    strncat(path, name, PATH_MAX - strlen(path) - 1);
}

static unsigned long inode_at(const char *path) {
    struct stat found;
    return syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW) ? 0 : found.st_ino;
}

static unsigned long inode_of(int handle) {
    struct stat found;
    return syscall(SYS_fstat, handle, &found) ? 0 : found.st_ino;
}

/* ── points ── */

static void note(const char *what, unsigned long inode, long offset, const void *data, size_t length,
                 const char *path, const char *other) {
    char line[3 * PATH_MAX];
    if (mode != RECORD) return;
    int n = snprintf(line, sizeof line, "%s\t%lu\t%ld\t%zu\t%s\t%s\n", what, inode, offset, length, path,
                     other);
    syscall(SYS_write, log_to, line, n);
    for (size_t done = 0; data && done < length;)
        done += syscall(SYS_write, log_to, (const char *)data + done, length - done);
}

static void end(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* The lock is held. 0: go on; -1: the call fails with errno. A full disk may halve the length. */
static int point(int kind, size_t *length) {
    long number = ++*count;
    if (mode == KILL && number == at) end();
    if (mode == TEAR && number == at && length == NULL) end();
    if (mode == FAIL && number == at) return errno = EIO, -1;
    if (mode == FULL && number >= at && kind == GROWS) {
        if (number == at && length && *length > 1) return *length /= 2, 0;
        return errno = ENOSPC, -1;
    }
    return 0;
}

#define CHANGE(kind, what, inode, path, other, call)              \
    do {                                                          \
        pthread_mutex_lock(&turn);                                \
        unsigned long known = (inode);                            \
        long result = point(kind, NULL);                          \
        if (result == 0) result = (call);                         \
        int error = errno;                                        \
        note(result == 0 ? what : "failed", known, 0, NULL, 0, path, other); \
        pthread_mutex_unlock(&turn);                              \
        errno = error;                                            \
        return result;                                            \
    } while (0)

/* ── files ── */

static int opened(int folder, const char *name, int flags, mode_t rights) {
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (!inside(path) || !(flags & (O_CREAT | O_TRUNC)))
        return syscall(SYS_openat, folder, name, flags, rights);
    pthread_mutex_lock(&turn);
    struct stat found;
    int there = syscall(SYS_newfstatat, AT_FDCWD, path, &found, 0) == 0;
    int harmless = there && !(flags & O_TRUNC && found.st_size > 0);
    long handle = harmless ? 0 : point(there ? OTHER : GROWS, NULL);
    if (handle == 0) handle = syscall(SYS_openat, folder, name, flags, rights);
    int error = errno;
    const char *what = handle < 0 ? "failed" : there ? "cut" : "create";
    if (!harmless) note(what, handle < 0 ? 0 : inode_of(handle), 0, NULL, 0, path, "");
    pthread_mutex_unlock(&turn);
    errno = error;
    return handle;
}

#define OPENER(name, before, folder)                          \
    int name(before const char *path, int flags, ...) {       \
        va_list more;                                         \
        va_start(more, flags);                                \
        mode_t rights = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                         \
        return opened(folder, path, flags, rights);           \
    }
#define NONE
#define HANDLE int handle,
OPENER(open, NONE, AT_FDCWD)
OPENER(open64, NONE, AT_FDCWD)
OPENER(openat, HANDLE, handle)
OPENER(openat64, HANDLE, handle)
int creat(const char *path, mode_t rights) {
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, rights);
}
int creat64(const char *path, mode_t rights) { return creat(path, rights); }

/* `place` < 0: where the file stands. */
static ssize_t written(int handle, const void *data, size_t length, off_t place) {
    char path[PATH_MAX] = "";
    if (mode != OFF) of_handle(handle, path);
    if (!inside(path))
        return place < 0 ? syscall(SYS_write, handle, data, length)
                         : syscall(SYS_pwrite64, handle, data, length, place);
    pthread_mutex_lock(&turn);
    off_t start = place;
    if (place < 0) {
        int append = fcntl(handle, F_GETFL) & O_APPEND;
        start = syscall(SYS_lseek, handle, 0, append ? SEEK_END : SEEK_CUR);
    }
    int torn = mode == TEAR && *count + 1 == at;
    size_t some = torn ? length / 2 : length;
    ssize_t result = point(GROWS, &some);
    if (result == 0)
        result = place < 0 ? syscall(SYS_write, handle, data, some)
                           : syscall(SYS_pwrite64, handle, data, some, place);
    int error = errno;
    if (torn) end();
    int done = result > 0;
    note(done ? "write" : "failed", inode_of(handle), start, data, done ? result : 0, path, "");
    pthread_mutex_unlock(&turn);
    errno = error;
    return result;
}

ssize_t write(int handle, const void *data, size_t length) { return written(handle, data, length, -1); }
ssize_t pwrite(int handle, const void *data, size_t length, off_t place) {
    return written(handle, data, length, place);
}
ssize_t pwrite64(int handle, const void *data, size_t length, off64_t place) {
    return written(handle, data, length, place);
}

static ssize_t gathered(int handle, const struct iovec *parts, int number, off_t place) {
    size_t length = 0, done = 0;
    for (int k = 0; k < number; k++) length += parts[k].iov_len;
    char *whole = malloc(length + 1);
    for (int k = 0; k < number; done += parts[k++].iov_len)
        memcpy(whole + done, parts[k].iov_base, parts[k].iov_len);
    ssize_t result = written(handle, whole, length, place);
    int error = errno;
    free(whole);
    errno = error;
    return result;
}
ssize_t writev(int handle, const struct iovec *parts, int number) {
    return gathered(handle, parts, number, -1);
}
ssize_t pwritev(int handle, const struct iovec *parts, int number, off_t place) {
    return gathered(handle, parts, number, place);
}
ssize_t pwritev64(int handle, const struct iovec *parts, int number, off64_t place) {
    return gathered(handle, parts, number, place);
}

/* Callers write in the ordinary way when these are not possible. */
ssize_t sendfile(int out, int in, off_t *offset, size_t length) {
    char path[PATH_MAX];
    of_handle(out, path);
    if (inside(path)) return errno = ENOTSOCK, -1;
    return syscall(SYS_sendfile, out, in, offset, length);
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t length) {
    return sendfile(out, in, offset, length);
}
ssize_t copy_file_range(int in, off64_t *a, int out, off64_t *b, size_t length, unsigned flags) {
    char path[PATH_MAX];
    of_handle(out, path);
    if (inside(path)) return errno = EXDEV, -1;
    return syscall(SYS_copy_file_range, in, a, out, b, length, flags);
}
int posix_fallocate(int handle, off_t offset, off_t length) { return EOPNOTSUPP; }
int posix_fallocate64(int handle, off64_t offset, off64_t length) { return EOPNOTSUPP; }
int fallocate(int handle, int how, off_t offset, off_t length) { return errno = EOPNOTSUPP, -1; }
int fallocate64(int handle, int how, off64_t offset, off64_t length) { return errno = EOPNOTSUPP, -1; }

int ftruncate(int handle, off_t length) {
    char path[PATH_MAX];
    struct stat found;
    of_handle(handle, path);
    if (!inside(path)) return syscall(SYS_ftruncate, handle, length);
    if (syscall(SYS_fstat, handle, &found) == 0 && found.st_size == length) return 0;
    pthread_mutex_lock(&turn);
    long result = point(length > found.st_size ? GROWS : OTHER, NULL);
    if (result == 0) result = syscall(SYS_ftruncate, handle, length);
    int error = errno;
    note(result == 0 ? "truncate" : "failed", found.st_ino, length, NULL, 0, path, "");
    pthread_mutex_unlock(&turn);
    errno = error;
    return result;
}
int ftruncate64(int handle, off64_t length) { return ftruncate(handle, length); }

static int synced(int handle, long number) {
    char path[PATH_MAX];
    of_handle(handle, path);
    if (!inside(path)) return syscall(number, handle);
    CHANGE(OTHER, "sync", inode_of(handle), path, "", syscall(number, handle));
}
int fsync(int handle) { return synced(handle, SYS_fsync); }
int fdatasync(int handle) { return synced(handle, SYS_fdatasync); }

void *mmap64(void *where, size_t length, int rights, int flags, int handle, off64_t offset) {
    char path[PATH_MAX] = "";
    if (mode == RECORD && handle >= 0 && flags & MAP_SHARED && rights & PROT_WRITE) {
        of_handle(handle, path);
        if (inside(path)) note("map", inode_of(handle), 0, NULL, 0, path, "");
    }
    return (void *)syscall(SYS_mmap, where, length, rights, flags, handle, offset);
}
void *mmap(void *where, size_t length, int rights, int flags, int handle, off_t offset) {
    return mmap64(where, length, rights, flags, handle, offset);
}

/* ── names ── */

static int renamed(int from, const char *old, int to, const char *new, unsigned flags) {
    char path[PATH_MAX], other[PATH_MAX];
    absolute(from, old, path), absolute(to, new, other);
    if (!inside(path) && !inside(other)) return syscall(SYS_renameat2, from, old, to, new, flags);
    CHANGE(OTHER, "rename", inode_at(path), path, other,
           syscall(SYS_renameat2, from, old, to, new, flags));
}
int rename(const char *old, const char *new) { return renamed(AT_FDCWD, old, AT_FDCWD, new, 0); }
int renameat(int from, const char *old, int to, const char *new) { return renamed(from, old, to, new, 0); }
int renameat2(int from, const char *old, int to, const char *new, unsigned flags) {
    return renamed(from, old, to, new, flags);
}

int unlinkat(int folder, const char *name, int flags) {
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (!inside(path) || inode_at(path) == 0) return syscall(SYS_unlinkat, folder, name, flags);
    CHANGE(OTHER, "remove", inode_at(path), path, "", syscall(SYS_unlinkat, folder, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t rights) {
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (!inside(path) || inode_at(path)) return syscall(SYS_mkdirat, folder, name, rights);
    CHANGE(GROWS, "folder", 0, path, "", syscall(SYS_mkdirat, folder, name, rights));
}
int mkdir(const char *name, mode_t rights) { return mkdirat(AT_FDCWD, name, rights); }

int symlinkat(const char *target, int folder, const char *name) {
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (!inside(path)) return syscall(SYS_symlinkat, target, folder, name);
    CHANGE(GROWS, "symlink", 0, path, target, syscall(SYS_symlinkat, target, folder, name));
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    char path[PATH_MAX], other[PATH_MAX];
    absolute(from, old, path), absolute(to, new, other);
    if (!inside(other)) return syscall(SYS_linkat, from, old, to, new, flags);
    CHANGE(GROWS, "link", inode_at(path), path, other, syscall(SYS_linkat, from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int fchmodat(int folder, const char *name, mode_t rights, int flags) {
    char path[PATH_MAX];
    absolute(folder, name, path);
    if (!inside(path)) return syscall(SYS_fchmodat, folder, name, rights);
    CHANGE(OTHER, "mode", inode_at(path), path, "", syscall(SYS_fchmodat, folder, name, rights));
}
int chmod(const char *name, mode_t rights) { return fchmodat(AT_FDCWD, name, rights, 0); }
