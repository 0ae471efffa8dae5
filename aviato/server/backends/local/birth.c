/* A sandbox's first moments: clone into new namespaces, and in the child the system calls of its plan, in their order.
 *
 * The child is a copy of the template, whose pages it shares until it writes to them: each page written costs as much as a
 * dozen system calls. Python writes to hundreds before it has made the first call, this to its stack alone. What is to be
 * called comes from outside, as `record.py` has noted it; nothing here decides anything.
 *
 * No Python: plain functions for ctypes, so that one library serves every version of the interpreter.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../supervisor/early.h"
#include "birth.h"
#include "networks.h"
#include "processors.h"

/* What is no system call of these arguments. */
enum { LABEL = -1, RECEIVE = -2, BOUND_CAPABILITIES = -3, LOAD_FILTER = -4, RAISE_LOOPBACK = -5, LEND = -6, IS = -7, USER_NAMESPACE = -8 };

/* The operations, by name and in the order that numbers them; `native.py` reads the names. */
#define OPERATIONS(o) \
    o(chdir, SYS_chdir) o(fchdir, SYS_fchdir) o(openat, SYS_openat) o(dup3, SYS_dup3) o(close, SYS_close) o(write, SYS_write) \
    o(mkdirat, SYS_mkdirat) o(fchmodat, SYS_fchmodat) o(symlinkat, SYS_symlinkat) o(unlinkat, SYS_unlinkat) \
    o(mount, SYS_mount) o(umount2, SYS_umount2) o(open_tree, SYS_open_tree) o(mount_setattr, SYS_mount_setattr) \
    o(move_mount, SYS_move_mount) o(pivot_root, SYS_pivot_root) o(setresgid, SYS_setresgid) o(setresuid, SYS_setresuid) \
    o(prctl, SYS_prctl) o(sethostname, SYS_sethostname) o(prlimit64, SYS_prlimit64) \
    o(capset, SYS_capset) o(umask, SYS_umask) o(socket, SYS_socket) o(sched_setaffinity, SYS_sched_setaffinity) \
    o(label, LABEL) o(receive, RECEIVE) o(bound_capabilities, BOUND_CAPABILITIES) o(load_filter, LOAD_FILTER) \
    o(raise_loopback, RAISE_LOOPBACK) o(lend, LEND) o(is, IS) o(enter_user_namespace, USER_NAMESPACE)

#define NAME(name, number) #name " "
#define NUMBER(name, number) number,
EXPORTED const char aviato_operations[] = OPERATIONS(NAME);

/* The sources that this was made from; see `compiling.py`. */
#ifndef AVIATO_SOURCES
#define AVIATO_SOURCES "aviato-sources:unknown"
#endif
EXPORTED const char aviato_sources[] = AVIATO_SOURCES;

static const long numbers[] = {OPERATIONS(NUMBER)};
#define OPERATION_COUNT (sizeof numbers / sizeof numbers[0])

enum { ARGUMENTS = 6, ERRORS = 4 };
enum { VALUE, TEXT, REGISTER };
enum { ANY_ERROR = 255 };
enum { FIRST_DESCRIPTOR = 3, HIGH_DESCRIPTOR = REGISTERS };

struct call {
    uint32_t size; /* with its text, a multiple of eight */
    uint8_t operation;
    uint8_t result;          /* the register that gets what it returned */
    uint8_t skip_done;       /* how many calls are left out after it, where it was done */
    uint8_t skip_forgiven;   /* and where it failed by an error that is forgiven */
    uint8_t forgiven[ERRORS];
    uint8_t kinds[ARGUMENTS];
    uint8_t unused[6];
    int64_t arguments[ARGUMENTS]; /* by kind: itself, an offset in the text, the number of a register */
    char text[];
};

static int is_forgiven(const struct call *call, int error) {
    for (int i = 0; i < ERRORS; i++)
        if (call->forgiven[i] == ANY_ERROR || (call->forgiven[i] && call->forgiven[i] == error))
            return 1;
    return 0;
}

int aviato_receive(int sock, int flags, int *descriptor) {
    char byte;
    struct iovec part = {&byte, 1};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    ssize_t count;
    do
        count = recvmsg(sock, &message, MSG_CMSG_CLOEXEC | flags);
    while (count < 0 && errno == EINTR);
    if (count == 0)
        errno = EPIPE; /* whoever is at the other end has died */
    if (count <= 0)
        return -1;
    *descriptor = -1;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS)
            memcpy(descriptor, CMSG_DATA(head), sizeof(int));
    return 0;
}

ssize_t aviato_send(int sock, int flags, struct iovec *parts, size_t count, const int *fds, size_t fd_count) {
    union {
        char room[CMSG_SPACE(MOST_SENT * sizeof(int))];
        struct cmsghdr aligned;
    } control = {.room = {0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (fd_count) {
        message.msg_control = control.room;
        message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(head), fds, fd_count * sizeof(int));
    }
    ssize_t sent;
    do
        sent = sendmsg(sock, &message, MSG_NOSIGNAL | flags);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* A descriptor for the template. */
static long lend(int sock, int descriptor) {
    char byte = 'r';
    struct iovec part = {&byte, 1};
    return aviato_send(sock, MSG_DONTWAIT, &part, 1, &descriptor, 1);
}

static long bound_capabilities(uint64_t kept) {
    for (unsigned long number = 0; number < 64; number++)
        if (!(kept >> number & 1) && syscall(SYS_prctl, PR_CAPBSET_DROP, number, 0, 0, 0) < 0)
            return errno == EINVAL ? 0 : -1; /* the kernel has no more */
    return 0;
}

static long load_filter(const char *instructions, uint64_t size) {
    struct sock_fprog described = {.len = (unsigned short)(size / sizeof(struct sock_filter)), .filter = (void *)instructions};
    /* Without the flag older kernels slow everything inside down, to protect it from others, of which it has none. */
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &described);
}

long aviato_is(int descriptor, uint64_t device, uint64_t inode) {
    struct stat found;
    if (fstat(descriptor, &found) < 0)
        return -1;
    if (found.st_dev == device && found.st_ino == inode)
        return 0;
    errno = ESTALE;
    return -1;
}

/* Who maps ids from outside: it has this process's memory and a stack of its own. */
struct mapper {
    const char *ids;
    size_t size;
    int told;
    int process; /* /proc of who waits */
    int error;
};

static int write_map(const char *name, const struct mapper *mapper) {
    int fd = openat(mapper->process, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    int error = write(fd, mapper->ids, mapper->size) < 0 ? errno : 0;
    close(fd);
    return error;
}

static int map_from_outside(void *given) {
    struct mapper *mapper = given;
    char byte;
    if (read(mapper->told, &byte, 1) == 1 && !(mapper->error = write_map("uid_map", mapper)))
        mapper->error = write_map("gid_map", mapper);
    return 0;
}

/* Be in a new user namespace with these ids. More than one can be mapped only by somebody who is in the namespace around. */
static __attribute__((noinline)) long enter_user_namespace(const char *ids, size_t size) {
    _Alignas(16) char stack[2048];
    int told[2];
    struct mapper mapper = {ids, size, -1, open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC), EPIPE};
    if (mapper.process < 0)
        return -1;
    if (pipe2(told, O_CLOEXEC) < 0) {
        int error = errno;
        close(mapper.process);
        errno = error;
        return -1;
    }
    mapper.told = told[0];
    int pid = clone(map_from_outside, stack + sizeof stack, CLONE_VM | CLONE_FILES, &mapper);
    int error = pid < 0 || unshare(CLONE_NEWUSER) < 0 ? errno : 0;
    if (pid > 0) {
        if (write(told[1], "g", error == 0) < 0)
            error = errno;
        close(told[1]);
        told[1] = -1;
        while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) {
        }
        error = error ? error : mapper.error;
    }
    close(mapper.process);
    close(told[0]);
    if (told[1] >= 0)
        close(told[1]);
    errno = error;
    return error ? -1 : 0;
}

static long make(const struct call *call, int32_t *registers) {
    long given[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) {
        int64_t value = call->arguments[i];
        given[i] = call->kinds[i] == TEXT ? (long)(call->text + value) : call->kinds[i] == REGISTER ? registers[value] : (long)value;
    }
    long number = numbers[call->operation];
    switch (number) {
    case LABEL:
        return 0;
    case RECEIVE:
        return aviato_receive((int)given[0], 0, &registers[given[1]]);
    case BOUND_CAPABILITIES:
        return bound_capabilities((uint64_t)given[0]);
    case LOAD_FILTER:
        return load_filter((const char *)given[0], (uint64_t)given[1]);
    case RAISE_LOOPBACK:
        return aviato_raise_loopback();
    case LEND:
        return lend((int)given[0], (int)given[1]);
    case USER_NAMESPACE:
        return enter_user_namespace((const char *)given[0], (size_t)given[1]);
    case IS:
        return aviato_is((int)given[0], (uint64_t)given[1], (uint64_t)given[2]);
    }
    return syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

/* Make the calls; returns 0, or the error of the first that failed and was not forgiven, with the step's label. */
static int make_all(const char *program, uint64_t size, int32_t *registers, int64_t *label) {
    unsigned skipped = 0;
    for (uint64_t at = 0; at < size;) {
        const struct call *call = (const struct call *)(program + at);
        if (call->size < sizeof *call || call->size > size - at || call->operation >= OPERATION_COUNT)
            return EINVAL;
        if (numbers[call->operation] == LABEL)
            *label = (int64_t)at;
        at += call->size;
        if (skipped) {
            skipped--;
            continue;
        }
        long result = make(call, registers);
        if (result >= 0) {
            if (call->result < REGISTERS)
                registers[call->result] = (int32_t)result;
            skipped = call->skip_done;
        } else if (is_forgiven(call, errno)) {
            skipped = call->skip_forgiven;
        } else {
            return errno;
        }
    }
    return 0;
}

/* Bring the descriptors of a supervisor to their places, and close all others. */
static int arrange(int32_t *registers, uint64_t kept) {
    int high[REGISTERS];
    for (uint64_t i = 0; i < kept; i++)
        if ((high[i] = fcntl(registers[i], F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)) < 0)
            return errno;
    for (uint64_t i = 0; i < kept; i++)
        if (dup3(high[i], FIRST_DESCRIPTOR + (int)i, O_CLOEXEC) < 0)
            return errno;
    if (syscall(SYS_close_range, FIRST_DESCRIPTOR + kept, ~0U, 0) < 0)
        return errno;
    return 0;
}

/* Where the parts of this process's memory are, as the kernel has it. */
static struct prctl_mm_map parts;
static int parts_are_known;

void aviato_learn_parts(void) {
    enum { STATE = 3, START_CODE = 26, START_DATA = 45, ENVIRONMENT = 50, FIELDS = 52 };
    char text[1024], *rest;
    uint64_t fields[FIELDS] = {0};
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC), count = STATE;
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = 0;
    char *behind_name = strrchr(text, ')');
    for (char *field = behind_name ? strtok_r(behind_name + 1, " ", &rest) : NULL; field && count < FIELDS; field = strtok_r(NULL, " ", &rest))
        fields[count++] = strtoull(field, NULL, 10);
    parts = (struct prctl_mm_map){
        .start_code = fields[START_CODE], .end_code = fields[START_CODE + 1], .start_stack = fields[START_CODE + 2],
        .start_data = fields[START_DATA], .end_data = fields[START_DATA + 1], .start_brk = fields[START_DATA + 2],
        .env_start = fields[ENVIRONMENT], .env_end = fields[ENVIRONMENT + 1], .exe_fd = (uint32_t)-1,
    };
    parts_are_known = count == FIELDS;
}

/* Everyone inside can read the command line of process 1, and this one tells where the server is installed. */
void aviato_set_title(const struct birth *birth, const char *name) {
    char *title = aviato_title();
    strncpy(title, name, AVIATO_TITLE_BYTES - 1);
    syscall(SYS_prctl, PR_SET_NAME, name, 0, 0, 0);
    /* To write over it costs a page, unless the kernel can be told that it is elsewhere. */
    struct prctl_mm_map changed = parts;
    changed.arg_start = (uintptr_t)title;
    changed.arg_end = changed.arg_start + AVIATO_TITLE_BYTES;
    changed.brk = (uint64_t)syscall(SYS_brk, 0);
    if (parts_are_known && syscall(SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, &changed, sizeof changed, 0) == 0)
        return;
    memset(birth->title, 0, birth->title_size);
    strncpy(birth->title, name, birth->title_size - 1);
}

void aviato_become(struct birth *birth, int32_t *registers) {
    int64_t label = 0;
    aviato_set_title(birth, birth->name);
    int error = birth->kept <= REGISTERS ? make_all(birth->program, birth->size, registers, &label) : EINVAL;
    if (!error)
        error = arrange(registers, birth->kept);
    if (error) {
        birth->error = error;
        birth->label = label;
    }
}

static long clone_in(uint64_t flags, int64_t group, int *pidfd) {
    if (group < 0)
        return syscall(SYS_clone, flags | CLONE_PIDFD | SIGCHLD, 0, pidfd, 0, 0);
    uint64_t given[11] = {flags | CLONE_PIDFD | INTO_CGROUP, (uint64_t)pidfd, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, (uint64_t)group};
    return syscall(SYS_clone3, given, sizeof given);
}

/* In that group, or where it is -1 in one by which sandboxes share the processors out. */
long aviato_clone(uint64_t flags, int64_t group, int *pidfd) {
    int shared = group < 0 ? aviato_enter_group() : -1;
    long pid = clone_in(flags, group < 0 ? shared : group, pidfd);
    int error = errno;
    if (pid && group < 0)
        aviato_leave_group(pid);
    errno = error;
    return pid;
}

EXPORTED long aviato_birth(struct birth *birth) {
    int pidfd = -1;
    long pid = aviato_clone(birth->flags, birth->group, &pidfd);
    if (pid != 0) {
        birth->pidfd = pidfd;
        birth->error = pid < 0 ? errno : 0;
        return pid;
    }
    int32_t registers[REGISTERS];
    memcpy(registers, birth->registers, sizeof registers);
    if (birth->unneeded >= 0)
        close((int)birth->unneeded);
    aviato_become(birth, registers);
    return 0;
}
