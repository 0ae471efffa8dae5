/* Network namespaces that one sandbox after the other can have.
 *
 * To make one and to take it apart costs the kernel a twentieth of a short command's processor time, most of it long after the
 * sandbox is gone, and next to none of these commands ever opens a socket. So a namespace whose sandbox has ended is given to the
 * next one if it cannot be told from a new one: no socket lives in it, and all that the kernel counts and lists of it is what it
 * was when it was made. Nobody inside has any capability in it, since it belongs to the template's user namespace: addresses,
 * routes, rules and settings are as they were made. Whatever else is seen, or cannot be seen, it goes and a new one is made.
 *
 * Only where the template may make network namespaces of its own (`CAP_SYS_ADMIN`); elsewhere each child has one with its clone. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../supervisor/early.h"
#include "birth.h"
#include "networks.h"

enum { MOST_TAKEN = 64, MOST_RESTING = 24 }; /* beyond these they go with their sandboxes */
/* A kernel counts what is sent and has not arrived, eleven files each, for all processes of a user. */
enum { MOST_PAIRS = 32 };
enum { SEEN_BYTES = 32 << 10 };
/* That a multicast group was joined and left is told about some turns of the kernel's clock later, and seen only then. And a closed
 * netlink socket, of which process 1 has one, is counted until the kernel's readers have gone by. */
#define REST_SECONDS 0.15
#define LONGEST_REST_SECONDS 1.0
/* Where nobody asks for sandboxes none is held: each is some hundred KiB of the kernel's. */
#define KEPT_SECONDS 5.0

/* One, with a pair of sockets in which its files lie between two looks at it (-1: none). To open them anew would cost as much as to
 * read them; as descriptors each child would have to be given them and to close them, which costs that, too. Whatever may be wrong
 * with the pair, the files are opened. They keep their namespace alive as its own descriptor does, and go with the pair. */
struct network {
    int fd, pair[2];
    long pid;
    double ended;
};

/* Each is of the namespace in which it was opened, whoever reads it and wherever. */
enum { ROUTES, SOCKETS_USED, SEEN };
static const char *const paths[] = {
    /* For IPv4 the kernel keeps the ways that it found, and tells by netlink alone since when: with this all become invalid. */
    [ROUTES] = "/proc/sys/net/ipv4/route/flush",
    /* Whether a socket of anybody's lives: its other lines count for the whole machine. */
    [SOCKETS_USED] = "/proc/self/net/sockstat",
    /* Packets and what became of them, and what a socket can leave behind without having sent any: to have looked for a way is enough
     * for IPv6 to keep one for that processor, and some kernels count who looks for one of IPv4. */
    [SEEN] = "/proc/self/net/dev",
    "/proc/self/net/snmp",
    "/proc/self/net/snmp6",
    "/proc/self/net/netstat",
    "/proc/self/net/igmp",
    "/proc/self/net/igmp6",
    "/proc/self/net/ip6_flowlabel",
    "/proc/self/net/rt6_stats",
    "/proc/self/net/fib_triestat",
};
enum { FILES = sizeof paths / sizeof paths[0] };
static const char no_socket[] = "sockets: used 0\n";

static enum { UNKNOWN, POSSIBLE, IMPOSSIBLE } state;
/* What changes with each sandbox, in whole pages: a child that gives them back leaves nothing to the template that it has to copy. */
static struct {
    _Alignas(AVIATO_PAGE_BYTES) int home;
    int taken_count, resting_count, pair_count;
    struct network entered, taken[MOST_TAKEN], resting[MOST_RESTING];
    char of_this[SEEN_BYTES];
} own;
static char of_new[SEEN_BYTES];
static size_t new_size;

static void close_files(const int *files) {
    for (int i = 0; i < FILES; i++)
        if (files[i] >= 0)
            close(files[i]);
}

static void close_network(const struct network *network) {
    close(network->fd);
    if (network->pair[0] >= 0) {
        close(network->pair[0]);
        close(network->pair[1]);
    }
}

static void give_up(const struct network *network) {
    close_network(network);
    if (network->pair[0] >= 0)
        own.pair_count--;
}

/* For one that may be had again, while there are few. At home: elsewhere these would be sockets that live there. */
static void make_pair(struct network *network) {
    if (network->pair[0] >= 0 || own.pair_count >= MOST_PAIRS || setns(own.home, CLONE_NEWNET) < 0)
        return;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, network->pair) == 0)
        own.pair_count++;
    else
        network->pair[0] = -1;
}

/* Put the files of a namespace away, or close them. */
static void put_files(const struct network *network, const int *files) {
    if (network->pair[0] >= 0) {
        int there[FILES], count = 0;
        uint32_t which = 0;
        struct iovec part = {&which, sizeof which};
        for (int i = 0; i < FILES; i++)
            if (files[i] >= 0) {
                which |= 1U << i;
                there[count++] = files[i];
            }
        aviato_send(network->pair[0], MSG_DONTWAIT, &part, 1, there, (size_t)count);
    }
    close_files(files);
}

/* The files of a namespace that were put away; 0 where there are none, or not all of them. */
static int fetch_files(const struct network *network, int *files) {
    uint32_t which = 0;
    struct iovec part = {&which, sizeof which};
    union {
        char room[CMSG_SPACE(FILES * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = CMSG_LEN(FILES * sizeof(int))};
    if (network->pair[0] < 0)
        return 0;
    ssize_t size = recvmsg(network->pair[1], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0)
        return 0;
    int there[FILES], count = 0, next = 0;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
        count = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(there, CMSG_DATA(head), (size_t)count * sizeof(int));
    }
    if (size == (ssize_t)sizeof which && !(message.msg_flags & MSG_CTRUNC) && count == __builtin_popcount(which)) {
        for (int i = 0; i < FILES; i++)
            files[i] = which & (1U << i) ? there[next++] : -1;
        return 1;
    }
    while (count)
        close(there[--count]);
    return 0;
}

/* The files of the namespace that this process is in. One that this kernel lacks is -1. Returns -1 where one cannot be had. */
static int open_files(int *files) {
    memset(files, -1, FILES * sizeof *files);
    for (int i = 0; i < FILES; i++)
        if ((files[i] = open(paths[i], (i == ROUTES ? O_WRONLY : O_RDONLY) | O_CLOEXEC)) < 0 && errno != ENOENT) {
            close_files(files);
            return -1;
        }
    return 0;
}

/* Returns how much of a file there is, or -1 where it is more than the room. One that this kernel lacks is empty. */
static ssize_t read_file(int fd, char *into, size_t room) {
    size_t size = 0;
    for (ssize_t more; fd >= 0; size += (size_t)more) {
        if (size == room)
            return -1;
        if ((more = pread(fd, into + size, room - size, (off_t)size)) <= 0) /* from its beginning it is made anew */
            return more < 0 ? -1 : (ssize_t)size;
    }
    return 0;
}

static ssize_t see(const int *files, char *into) {
    size_t size = 0;
    for (int i = SEEN; i < FILES; i++) {
        ssize_t more = read_file(files[i], into + size, SEEN_BYTES - size);
        if (more < 0)
            return -1;
        size += (size_t)more;
    }
    return (ssize_t)size;
}

static int has_sockets(const int *files) {
    char read[1024];
    ssize_t size = read_file(files[SOCKETS_USED], read, sizeof read);
    return size < (ssize_t)sizeof no_socket - 1 || memcmp(read, no_socket, sizeof no_socket - 1) != 0;
}

static int forget_routes(const int *files) { return pwrite(files[ROUTES], "-1", 2, 0) == 2 ? 0 : -1; }

static int is_as_new(const int *files) {
    return forget_routes(files) == 0 && see(files, own.of_this) == (ssize_t)new_size && memcmp(own.of_this, of_new, new_size) == 0;
}

int aviato_raise_loopback(void) {
    struct ifreq loopback = {.ifr_name = "lo"};
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (sock < 0)
        return -1;
    int result = ioctl(sock, SIOCGIFFLAGS, &loopback);
    if (result == 0 && !(loopback.ifr_flags & IFF_UP)) {
        loopback.ifr_flags |= IFF_UP;
        result = ioctl(sock, SIOCSIFFLAGS, &loopback);
    }
    int error = errno;
    close(sock);
    errno = error;
    return result;
}

static int here(void) { return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC); }

/* Be in a new one. */
static int enter_new(void) {
    if (unshare(CLONE_NEWNET) < 0)
        return -1;
    if (aviato_raise_loopback() < 0)
        return -1;
    own.entered = (struct network){.fd = here(), .pair = {-1, -1}};
    return own.entered.fd;
}

/* What a new one looks like, and whether there is a way back from it. */
static int begin(void) {
    if (state != UNKNOWN)
        return state == POSSIBLE;
    state = IMPOSSIBLE;
    own.entered.fd = -1;
    if ((own.home = here()) < 0)
        return 0;
    if (setns(own.home, CLONE_NEWNET) < 0) { /* in a user namespace that shares another's network: there is no way back */
        close(own.home);
        return 0;
    }
    if (enter_new() < 0) {
        setns(own.home, CLONE_NEWNET);
        close(own.home);
        return 0;
    }
    int files[FILES];
    ssize_t size = -1;
    if (open_files(files) == 0) {
        size = has_sockets(files) || forget_routes(files) < 0 ? -1 : see(files, of_new);
        close_files(files);
    }
    struct network made = own.entered;
    own.entered.fd = -1;
    if (setns(own.home, CLONE_NEWNET) < 0 || size <= 0) {
        close_network(&made);
        close(own.home);
        return 0;
    }
    new_size = (size_t)size;
    state = POSSIBLE;
    own.resting[own.resting_count++] = made;
    return 1;
}

/* The one that rests the longest, out of the list. */
static struct network take_first(void) {
    struct network first = own.resting[0];
    memmove(own.resting, own.resting + 1, (size_t)--own.resting_count * sizeof own.resting[0]);
    return first;
}

EXPORTED int aviato_enter_network(void) {
    if (!begin())
        return 0;
    while (own.resting_count && early_now() - own.resting[0].ended >= REST_SECONDS) {
        struct network *first = &own.resting[0];
        make_pair(first);
        int files[FILES], is_in = setns(first->fd, CLONE_NEWNET) == 0;
        int is_seen = is_in && (fetch_files(first, files) || open_files(files) == 0), used = is_seen && has_sockets(files);
        if (used && early_now() - first->ended < LONGEST_REST_SECONDS) {
            put_files(first, files);
            break;
        }
        struct network network = take_first();
        if (is_seen && !used && is_as_new(files)) {
            put_files(&network, files);
            own.entered = network;
            return 1;
        }
        if (is_seen)
            close_files(files);
        give_up(&network);
    }
    if (enter_new() >= 0)
        return 1;
    aviato_leave_network(-1);
    return 0;
}

static void rest(const struct network *network) {
    if (own.resting_count < MOST_RESTING) {
        own.resting[own.resting_count] = *network;
        own.resting[own.resting_count++].ended = early_now();
    } else
        give_up(network);
}

EXPORTED void aviato_leave_network(long pid) {
    if (state != POSSIBLE)
        return;
    own.entered.pid = pid;
    if (own.entered.fd >= 0 && pid <= 0)
        rest(&own.entered);
    else if (own.entered.fd >= 0 && own.taken_count < MOST_TAKEN)
        own.taken[own.taken_count++] = own.entered;
    else if (own.entered.fd >= 0)
        give_up(&own.entered);
    own.entered.fd = -1;
    if (setns(own.home, CLONE_NEWNET) < 0)
        state = IMPOSSIBLE; /* it went before; whatever has changed, no namespace is given twice from here on */
}

EXPORTED int aviato_drop_networks(void) {
    while (own.resting_count && early_now() - own.resting[0].ended >= KEPT_SECONDS) {
        struct network first = take_first();
        give_up(&first);
    }
    return own.resting_count ? (int)((own.resting[0].ended + KEPT_SECONDS - early_now()) * 1000) + 1 : -1;
}

void aviato_forget_networks(void) {
    for (int i = 0; i < own.taken_count; i++)
        close_network(&own.taken[i]);
    for (int i = 0; i < own.resting_count; i++)
        close_network(&own.resting[i]);
    if (state == POSSIBLE) {
        close(own.home);
        if (own.entered.fd >= 0)
            close_network(&own.entered);
    }
    aviato_give_back(&own, sizeof own);
}

EXPORTED void aviato_network_ended(long pid) {
    for (int i = 0; i < own.taken_count; i++)
        if (own.taken[i].pid == pid) {
            rest(&own.taken[i]);
            own.taken[i] = own.taken[--own.taken_count];
            return;
        }
}
