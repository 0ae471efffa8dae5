/* The template's turn: a request is read, a place is made, a sandbox is born in it, the server is answered.
 *
 * Each clone takes the template's pages away from it as well: what it writes to next is copied, as in its child. So the usual
 * request is served without Python too. Whatever is unusual is handed to it, as it came. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "../../supervisor/early.h"
#include "birth.h"
#include "layers.h"
#include "networks.h"
#include "processors.h"
#include "shared.h"

#define MAGIC "AVB\1"
#define BURIAL "AVB\2"
#define OBLIVION "AVB\3"
#define SHARING "AVB\4"

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

enum { ENDED, MESSAGE, CHILDREN_DIED, BORN };
enum { HAS_PORTS = 1, HAS_LOWER = 2, LENDS_ROOT = 4 };
enum { QUIET_MILLISECONDS = 10 };
enum { GIVEN = 4, KEPT = 32, MOST_TREES = 8, MOST_ORDERED = 5 + MOST_TREES, MOST_BURIED = MOST_SENT };

struct request { /* the strings behind it: place, owned, the earlier place and lower if there are any, and the paths of the trees */
    char magic[4];
    uint32_t number;
    uint32_t uid;
    uint32_t gid;
    uint32_t flags;
    uint32_t owned;
    uint32_t trees;
    uint32_t program; /* where the calls begin */
    uint32_t earlier; /* the request for the sandbox whose place and layers it has, or 0 */
    uint32_t ids;     /* how many it has, from these on */
};

struct burial { /* the strings behind it: for each its place and the one that it is to have, or none where all are to be forgotten */
    char magic[4];
    uint32_t number;
    uint32_t count;
    uint32_t requests[]; /* for those that are dead */
};

struct sharing { /* the directory behind it, in which groups are made */
    char magic[4];
    uint32_t unified;
};

struct tree {
    uint32_t number; /* of the register */
    uint32_t attributes;
    uint64_t device; /* by which it is known, or 0 */
    uint64_t inode;
};

struct template {
    int32_t control;
    int32_t children;
    int32_t alone; /* nothing but supervisors in namespaces has been made: the dead need no second look */
    int32_t fds[GIVEN]; /* out: what came with a message */
    int32_t fd_count;
    char *buffer;
    uint64_t room;
    uint64_t size; /* out: of the message in the buffer */
    uint64_t namespaces;
    int32_t ports; /* out, in the child */
    int32_t connection; /* out, in the child: where to say that it is not confined */
    int32_t spare; /* a child that waits to be told what to be, or 0 */
    int32_t spare_pidfd;
    int32_t spare_socket;
    struct birth birth;
    struct aviato_early early;
};

/* What a child is told, with descriptors; the calls come behind it. */
struct order {
    uint32_t kept;
    uint32_t ports;
    uint32_t count;
    uint32_t numbers[MOST_ORDERED]; /* the registers of the descriptors */
    uint32_t unused;
};

struct making {
    int kept[KEPT]; /* what is closed in the end */
    int kept_count;
    const char *what; /* that failed */
    const char *where;
};

static int keep(struct making *making, int fd) {
    if (fd >= 0 && making->kept_count < KEPT)
        making->kept[making->kept_count++] = fd;
    return fd;
}

static int failed(struct making *making, const char *what, const char *where) {
    making->what = what;
    making->where = where;
    return -1;
}

static const char *after(const char *text, const char *end) {
    const char *next = memchr(text, 0, (size_t)(end - text));
    return next ? next + 1 : end;
}

static int write_file(const char *path, const char *content) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, content, strlen(content));
    int error = errno;
    close(fd);
    errno = error;
    return written < 0 ? -1 : 0;
}

static int bound(const char *name, int kind) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, name, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, kind | SOCK_CLOEXEC, 0);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name) + 1)) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* A sandbox's directory: a listening address, a note that is locked as long as it lives, directories that its id owns. Nobody comes
 * in but the server and that id, and it cannot change who does: it passes by its group. */
static int make_place(struct making *making, const struct request *request, const char *place, const char *end, const char *earlier,
                      int32_t *registers) {
    if (earlier) {
        if ((registers[MERGED] = keep(making, aviato_take_layers(request->earlier))) < 0 || !aviato_is_sound(registers[MERGED]))
            return failed(making, "take the layers of", earlier);
        if (rename(earlier, place) < 0)
            return failed(making, "rename", earlier);
    } else if (mkdir(place, request->uid == geteuid() ? 0700 : 0710) < 0 ||
               (request->uid != geteuid() && chown(place, (uid_t)-1, request->gid) < 0))
        return failed(making, "mkdir and chown", place);
    /* A path of one letter is never too long for a socket. */
    if (chdir(place) < 0)
        return failed(making, "chdir", place);
    const char *name = after(place, end);
    for (uint32_t i = 0; i < request->owned; i++, name = after(name, end))
        if (mkdir(name, 0755) < 0 || chown(name, request->uid, request->gid) < 0)
            return failed(making, "mkdir and chown", name);
    if ((registers[NOTE] = keep(making, open("note", O_WRONLY | O_APPEND | O_CREAT | O_TRUNC | O_CLOEXEC, 0600))) < 0)
        return failed(making, "open", "note");
    if (flock(registers[NOTE], LOCK_EX | LOCK_NB) < 0)
        return failed(making, "flock", "note");
    if (earlier && unlink("s") < 0)
        return failed(making, "unlink", "s");
    if ((registers[LISTENER] = keep(making, bound("s", SOCK_STREAM))) < 0)
        return failed(making, "bind", "s");
    if (request->flags & HAS_PORTS && (registers[OTHERS] = keep(making, bound("p", SOCK_SEQPACKET))) < 0)
        return failed(making, "bind", "p");
    return 0;
}

/* A copy to which nothing comes that is mounted there later: on a shared one, moreover, no root can be changed. */
static int copy_tree(int at, const char *path, int recursive, uint64_t attributes, int user_namespace) {
    int flags = recursive ? AT_RECURSIVE : 0;
    int fd = (int)syscall(SYS_open_tree, at, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | flags | (*path ? 0 : AT_EMPTY_PATH));
    uint64_t what[4] = {attributes, 0, MS_PRIVATE, (uint64_t)user_namespace};
    if (fd >= 0 && syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | flags, what, sizeof what) < 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* A copy of a directory that is what it was when the server looked at it. */
static int copy_known(const char *path, const struct tree *tree) {
    int directory = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), fd = -1;
    if (directory < 0)
        return -1;
    if (aviato_is(directory, tree->device, tree->inode) == 0)
        fd = copy_tree(directory, "", 1, tree->attributes, 0);
    int error = errno;
    close(directory);
    errno = error;
    return fd;
}

static ssize_t send_text(int sock, const char *text, int fd) {
    struct iovec part = {(void *)text, strlen(text)};
    return aviato_send(sock, 0, &part, 1, &fd, fd >= 0);
}

/* A message into the buffer; returns its size, and as many descriptors as came with it, of `most`. */
static __attribute__((noinline)) ssize_t take_message(int sock, struct template *template, int *fds, size_t most, size_t *fd_count) {
    struct iovec part = {template->buffer, template->room};
    union {
        char room[CMSG_SPACE(MOST_ORDERED * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room};
    message.msg_controllen = CMSG_SPACE(most * sizeof(int));
    ssize_t size;
    do
        size = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    *fd_count = 0;
    for (struct cmsghdr *head = size > 0 ? CMSG_FIRSTHDR(&message) : NULL; head; head = CMSG_NXTHDR(&message, head))
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
            *fd_count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            *fd_count = *fd_count < most ? *fd_count : most;
            memcpy(fds, CMSG_DATA(head), *fd_count * sizeof(int));
        }
    template->size = size > 0 ? (uint64_t)size : 0;
    return size;
}

/* In a child: wait to be told what to be, and become it. */
static __attribute__((noinline)) void await_order(struct template *template, int sock) {
    int fds[MOST_ORDERED];
    size_t count;
    int32_t registers[REGISTERS];
    struct birth *birth = &template->birth;
    aviato_set_title(birth, "aviato-spare");
    struct order *order = (struct order *)template->buffer;
    if (take_message(sock, template, fds, MOST_ORDERED, &count) < (ssize_t)sizeof *order || count != order->count)
        _exit(0); /* the template is gone */
    memset(registers, -1, sizeof registers);
    for (size_t i = 0; i < count; i++)
        registers[order->numbers[i] % REGISTERS] = fds[i];
    registers[CHILDREN] = template->children;
    registers[SYNC] = sock;
    template->connection = registers[CONNECTION];
    template->ports = (int32_t)order->ports;
    birth->program = template->buffer + sizeof *order;
    birth->size = template->size - sizeof *order;
    birth->kept = order->kept;
    aviato_become(birth, registers);
}

static void forget_spare(struct template *template) {
    if (template->spare) {
        close(template->spare_pidfd);
        close(template->spare_socket);
    }
    template->spare = 0;
}

/* Have a child at hand; its clone is a tenth of a sandbox's way, and goes on while others work. Returns 0 in the child, or -1. */
static __attribute__((noinline)) long prepare_spare(struct template *template) {
    int pair[2], pidfd = -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    int has_network = template->namespaces & CLONE_NEWNET && aviato_enter_network();
    long pid = aviato_clone(template->namespaces & ~(has_network ? CLONE_NEWNET : 0UL), -1, &pidfd);
    int error = errno;
    if (pid == 0) {
        /* Neither would show the end of the one that has it, as long as this had it, too. */
        close(pair[0]);
        close(template->control);
        if (has_network)
            aviato_forget_networks();
        aviato_forget_layers();
        aviato_forget_groups();
        await_order(template, pair[1]);
        return 0;
    }
    aviato_leave_network(pid);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        errno = error;
        return -1;
    }
    template->spare = (int32_t)pid;
    template->spare_pidfd = pidfd;
    template->spare_socket = pair[0];
    return pid;
}

/* As in `syscalls.py`. */
static void describe_map(char *map, size_t size, uint32_t first, uint32_t ids) {
    int length = snprintf(map, size, "0 %u 1\n", first);
    if (ids > 1)
        snprintf(map + length, size - (size_t)length, "1 %u %u\n", first + 1, ids - 1);
}

/* Let a child have unprivileged ids, and what lies below its writable layer, its owners mapped to them. */
static int map_ids(struct making *making, const struct request *request, long pid, const char *lower, int sync) {
    char path[64], map[96];
    int tree = -1;
    if (request->ids == 1) { /* so that an ordinary user may map it; nobody has another group to go to */
        snprintf(path, sizeof path, "/proc/%ld/setgroups", pid);
        if (write_file(path, "deny") < 0)
            return failed(making, "deny", "setgroups");
    }
    snprintf(path, sizeof path, "/proc/%ld/uid_map", pid);
    describe_map(map, sizeof map, request->uid, request->ids);
    if (write_file(path, map) < 0)
        return failed(making, "write", "uid_map");
    snprintf(path, sizeof path, "/proc/%ld/gid_map", pid);
    describe_map(map, sizeof map, request->gid, request->ids);
    if (write_file(path, map) < 0)
        return failed(making, "write", "gid_map");
    if (lower) {
        snprintf(path, sizeof path, "/proc/%ld/ns/user", pid);
        int namespace = keep(making, open(path, O_RDONLY | O_CLOEXEC));
        if (namespace < 0)
            return failed(making, "open", "ns/user");
        if ((tree = keep(making, copy_tree(AT_FDCWD, lower, 0, MOUNT_ATTR_IDMAP, namespace))) < 0)
            return failed(making, "map the ids of", lower);
    }
    return send_text(sync, "m", tree) < 0 ? failed(making, "send", "the maps") : 0;
}

/* Tell a child what to be. Returns its number, 0 in it, or -1. */
static long order_sandbox(struct template *template, struct making *making, const struct request *request, const int32_t *registers,
                          const char *lower, int *pidfd) {
    int fds[MOST_ORDERED];
    struct order order = {.kept = OTHERS + (request->flags & HAS_PORTS ? 1 : 0), .ports = request->flags & HAS_PORTS, .count = 0};
    for (uint32_t number = 0; number < REGISTERS && order.count < MOST_ORDERED; number++)
        if (registers[number] >= 0) {
            order.numbers[order.count] = number;
            fds[order.count++] = registers[number];
        }
    struct iovec parts[] = {{&order, sizeof order}, {template->buffer + request->program, template->size - request->program}};
    for (;;) {
        int was_at_hand = template->spare != 0;
        if (!was_at_hand) {
            long pid = prepare_spare(template);
            if (pid <= 0)
                return pid < 0 ? failed(making, "clone", "") : 0;
        }
        long pid = template->spare;
        if (syscall(SYS_pidfd_send_signal, template->spare_pidfd, 0, NULL, 0) < 0 ||
            aviato_send(template->spare_socket, 0, parts, 2, fds, order.count) < 0)
            failed(making, "send", "the plan");
        else if (map_ids(making, request, pid, lower, template->spare_socket) == 0) {
            if (request->flags & LENDS_ROOT)
                aviato_await_layers(request->number, pid, request->uid, request->gid, template->spare_socket);
            else
                keep(making, template->spare_socket);
            *pidfd = keep(making, template->spare_pidfd);
            template->spare = 0;
            return pid;
        }
        int error = errno;
        syscall(SYS_pidfd_send_signal, template->spare_pidfd, SIGKILL, NULL, 0);
        forget_spare(template);
        errno = error;
        if (!was_at_hand)
            return -1;
        /* Somebody may have killed it while it waited: that is no reason for this sandbox to fail. */
    }
}

/* Returns the number of the child, 0 in it, or -1. */
static long make_sandbox(struct template *template, struct making *making, const struct request *request, int *pidfd) {
    const char *place = (const char *)(request + 1) + request->trees * sizeof(struct tree), *end = template->buffer + request->program;
    const char *lower = NULL, *earlier = NULL, *text = after(place, end);
    int32_t registers[REGISTERS];
    memset(registers, -1, sizeof registers);
    registers[CONNECTION] = template->fds[0];
    for (uint32_t i = 0; i < request->owned; i++)
        text = after(text, end);
    if (request->earlier) {
        earlier = text;
        text = after(text, end);
    }
    if (make_place(making, request, place, end, earlier, registers) < 0)
        return -1;
    if (request->flags & HAS_LOWER) {
        lower = text;
        text = after(text, end);
    }
    const struct tree *tree = (const struct tree *)(request + 1);
    for (uint32_t i = 0; i < request->trees; i++, tree++, text = after(text, end)) {
        int fd = keep(making, tree->inode ? copy_known(text, tree) : copy_tree(AT_FDCWD, text, 1, tree->attributes, 0));
        if (fd < 0 || tree->number >= REGISTERS)
            return failed(making, "open_tree", text);
        registers[tree->number] = fd;
    }
    return order_sandbox(template, making, request, registers, lower, pidfd);
}

/* A name in JSON. */
static const char *escaped(const char *text, char *room, size_t size) {
    size_t length = 0;
    for (; *text && length + 7 < size; text++) {
        unsigned char one = (unsigned char)*text;
        if (one == '"' || one == '\\' || one < ' ')
            length += (size_t)snprintf(room + length, size - length, "\\u%04x", one);
        else
            room[length++] = (char)one;
    }
    room[length] = 0;
    return room;
}

/* Returns 0 in the child. */
static __attribute__((noinline)) int serve(struct template *template, const struct request *request) {
    struct making making = {.kept_count = 0, .what = "", .where = ""};
    char answer[2048], where[1536];
    int pidfd = -1;
    for (int i = 0; i < template->fd_count; i++)
        keep(&making, template->fds[i]);
    errno = 0;
    long pid = make_sandbox(template, &making, request, &pidfd);
    int error = errno;
    if (pid == 0)
        return 0;
    if (chdir("/") < 0 && pid > 0)
        error = errno;
    if (pid > 0)
        snprintf(answer, sizeof answer, "{\"n\": %u, \"pid\": %ld}", request->number, pid);
    else
        snprintf(answer, sizeof answer, "{\"n\": %u, \"errno\": %d, \"error\": \"%s %s\"}", request->number, error, making.what,
                 escaped(making.where, where, sizeof where));
    /* The server takes a sandbox away whose descriptor does not come. If it is gone, the next message is its end. */
    if (send_text(template->control, answer, pid > 0 ? pidfd : -1) < 0 && errno == ETOOMANYREFS)
        send_text(template->control, answer, -1);
    while (making.kept_count)
        close(making.kept[--making.kept_count]);
    return 1;
}

static int is_ours(const struct template *template) {
    const struct request *request = (const struct request *)template->buffer;
    return template->size >= sizeof *request && memcmp(request->magic, MAGIC, sizeof request->magic) == 0 && template->fd_count == 1 &&
           request->trees <= MOST_TREES && request->program <= template->size && request->program % 8 == 0 &&
           sizeof *request + (uint64_t)request->trees * sizeof(struct tree) <= request->program;
}

static __attribute__((noinline)) void collect_the_dead(struct template *template) {
    char told[4096];
    if (read(template->children, told, sizeof told) < 0)
        return;
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;) {
        aviato_network_ended(pid);
        aviato_layers_ended(pid);
        aviato_group_ended(pid);
        if (pid == template->spare)
            forget_spare(template);
    }
}

/* What came, if it is one of these. */
static const struct burial *burial_of(const struct template *template, const char *magic) {
    const struct burial *burial = (const struct burial *)template->buffer;
    int is_one = template->size >= sizeof *burial && memcmp(burial->magic, magic, sizeof burial->magic) == 0 && template->fd_count == 0 &&
                 burial->count <= MOST_BURIED && sizeof *burial + burial->count * sizeof burial->requests[0] <= template->size;
    return is_one ? burial : NULL;
}

/* What holds layers that nobody will have goes to the server: the end of a mount in which much was looked up takes its time. */
static void send_rest(const struct template *template, const char *answer, int *rest, int count) {
    struct iovec part = {(void *)answer, strlen(answer)};
    aviato_send(template->control, 0, &part, 1, rest, (size_t)count);
    while (count)
        close(rest[--count]);
}

static __attribute__((noinline)) void forget(const struct template *template, const struct burial *burial) {
    char answer[64];
    int rest[MOST_BURIED], count = 0;
    for (uint32_t i = 0; i < burial->count; i++)
        if ((rest[count] = aviato_take_layers(burial->requests[i])) >= 0)
            count++;
    snprintf(answer, sizeof answer, "{\"n\": %u, \"kept\": []}", burial->number);
    send_rest(template, answer, rest, count);
}

/* Returns whether that was what came. */
static int share_processors(const struct template *template) {
    const struct sharing *sharing = (const struct sharing *)template->buffer;
    if (template->size <= sizeof *sharing || memcmp(sharing->magic, SHARING, sizeof sharing->magic) != 0 ||
        template->buffer[template->size - 1] != 0)
        return 0;
    aviato_share_processors((const char *)(sharing + 1), (int)sharing->unified);
    return 1;
}

/* Tell of which of the dead another sandbox can have the layers. */
static __attribute__((noinline)) void bury(const struct template *template, const struct burial *burial) {
    char answer[1024];
    const char *text = (const char *)(burial->requests + burial->count), *end = template->buffer + template->size;
    size_t used = (size_t)snprintf(answer, sizeof answer, "{\"n\": %u, \"kept\": [", burial->number);
    int kept = 0, rest[MOST_BURIED], count = 0;
    for (uint32_t i = 0; i < burial->count && text < end; i++) {
        const char *place = text, *other = after(text, end);
        text = after(other, end);
        if (chdir(place) < 0 && chdir("/") < 0)
            continue; /* nothing of it is here */
        int is_kept = aviato_bury_layers(burial->requests[i], &rest[count]);
        if (is_kept && rename(place, other) < 0) {
            rest[count] = aviato_take_layers(burial->requests[i]);
            is_kept = 0;
        }
        count += rest[count] >= 0;
        if (is_kept)
            used += (size_t)snprintf(answer + used, sizeof answer - used, "%s%u", kept++ ? ", " : "", burial->requests[i]);
    }
    snprintf(answer + used, sizeof answer - used, "]}");
    if (chdir("/") < 0) {
        /* It is there. */
    }
    aviato_drop_layers();
    send_rest(template, answer, rest, count);
}

/* Being a sandbox's process 1: what of it goes without Python. */
static int born(struct template *template) {
    if (!template->birth.error && !template->ports && template->early.hello) {
        template->early.used_up = template->buffer;
        template->early.used_up_size = template->room;
        template->early.state_size = aviato_early(&template->early);
    }
    return BORN;
}

static int sooner(int one, int other) { return one < 0 || (other >= 0 && other < one) ? other : one; }

/* Serve until there is something for Python: returns what. */
static int serve_all(struct template *template) {
    struct pollfd polled[] = {{.fd = template->control, .events = POLLIN}, {.fd = template->children, .events = POLLIN}};
    int served = 0;
    for (;;) {
        /* The next child is made once nobody has asked for a while: beside one that is on its way in, each would hold up the other. */
        int ready = poll(polled, 2, served ? QUIET_MILLISECONDS : sooner(aviato_drop_groups(), sooner(aviato_drop_networks(), aviato_drop_layers())));
        if (ready < 0 && errno != EINTR)
            return ENDED;
        if (ready == 0 && served && !template->spare && prepare_spare(template) == 0)
            return born(template);
        served = ready != 0 && served;
        if (ready <= 0)
            continue;
        if (polled[1].revents) {
            if (!template->alone)
                return CHILDREN_DIED;
            collect_the_dead(template);
        }
        if (polled[0].revents) {
            size_t count;
            ssize_t size = take_message(template->control, template, template->fds, GIVEN, &count);
            template->fd_count = (int32_t)count;
            if (size <= 0) {
                aviato_remove_groups();
                return ENDED;
            }
            if (share_processors(template))
                continue;
            const struct burial *burial;
            if ((burial = burial_of(template, BURIAL))) {
                bury(template, burial);
                continue;
            }
            if ((burial = burial_of(template, OBLIVION))) {
                forget(template, burial);
                continue;
            }
            if (!is_ours(template))
                return MESSAGE;
            if (serve(template, (const struct request *)template->buffer) == 0)
                return born(template);
            served = 1;
        }
    }
}

/* What Python has asked for, on the stack that it is on. */
struct visit {
    struct template *template;
    int result;
    ucontext_t asked;
};

static void visit(uint32_t high, uint32_t low) {
    struct visit *visit = (struct visit *)((uintptr_t)((uint64_t)high << 32 | low));
    struct template template = *visit->template; /* beside all else that is written to from here on */
    visit->result = serve_all(&template);
    *visit->template = template;
}

/* On a stack of its own: what this process writes to after a clone is a page of that child's as well as what the child writes to. So
 * that it is the same few pages, and of Python's nothing is written to by either. */
EXPORTED int aviato_template(struct template *template) {
    static int is_prepared;
    static void *stack;
    static size_t stack_size;
    if (!is_prepared) {
        aviato_learn_parts();
        aviato_learn_signals();
        stack = aviato_stack(&stack_size);
        aviato_share_memory();
    }
    is_prepared = 1;
#ifdef __GLIBC__
    struct visit given = {.template = template};
    ucontext_t own;
    if (getcontext(&own) == 0) {
        own.uc_stack.ss_sp = stack;
        own.uc_stack.ss_size = stack_size;
        own.uc_link = &given.asked; /* where it goes when `visit` returns: in a child, too */
        makecontext(&own, (void (*)(void))visit, 2, (uint32_t)((uint64_t)(uintptr_t)&given >> 32), (uint32_t)(uintptr_t)&given);
        if (swapcontext(&given.asked, &own) == 0)
            return given.result;
    }
#endif
    return serve_all(template);
}
