/* What the compiled parts of a template share. */
#ifndef AVIATO_BIRTH_H
#define AVIATO_BIRTH_H

#include <stdint.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* What Python, or a test, calls by its name. All else is the library's own. */
#define EXPORTED __attribute__((visibility("default")))

/* Names that older headers lack; the numbers are those of every architecture. */
#ifndef SYS_open_tree
#define SYS_open_tree 428
#endif
#ifndef SYS_move_mount
#define SYS_move_mount 429
#endif
#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif
#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP */
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif
#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef OPEN_TREE_CLOEXEC
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif

/* How many descriptors calls can tell apart, and the registers whose meaning is fixed: what a supervisor keeps, in its order, and
 * the socket by which it hears that its ids are mapped, and a root that another sandbox had. As in `native.py`. */
enum { REGISTERS = 64 };
enum { CONNECTION, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN, OTHERS, SYNC = 24, MERGED = 27 };

struct birth {
    uint64_t flags;     /* of clone(2) */
    int64_t group;      /* directory of the control group that it is born in, or -1 */
    char *title;        /* where the command line lies, and what it becomes */
    uint64_t title_size;
    const char *name;
    int64_t unneeded;   /* a descriptor that the child closes first, or -1 */
    const char *program; /* calls, one behind the other */
    uint64_t size;
    int32_t *registers; /* REGISTERS of them; those below `kept` become the descriptors from FIRST_DESCRIPTOR on */
    uint64_t kept;
    int32_t pidfd;      /* out, in the parent */
    int32_t error;      /* out, in the child: why it is not confined, or 0 */
    int64_t label;      /* out, in the child: offset in the program of the step that failed */
};

/* Clone, and in the child become what was asked for. Returns the child's number in the parent, 0 in the child, and -1 where there
 * is none. */
long aviato_birth(struct birth *birth);

/* The parts of it. */
long aviato_clone(uint64_t flags, int64_t group, int *pidfd);
void aviato_learn_parts(void); /* once, before the first child */
void aviato_set_title(const struct birth *birth, const char *name);
void aviato_become(struct birth *birth, int32_t *registers);

/* Whether something open is of this file system and has this number there: 0, or -1 with ESTALE. */
long aviato_is(int descriptor, uint64_t device, uint64_t inode);

/* A message of some parts, with descriptors, MOST_SENT at most. */
enum { MOST_SENT = 64 };
ssize_t aviato_send(int sock, int flags, struct iovec *parts, size_t count, const int *fds, size_t fd_count);

/* One byte and perhaps a descriptor, else -1 in its place; returns -1 where none came. */
int aviato_receive(int sock, int flags, int *descriptor);

#endif
