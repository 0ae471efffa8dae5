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
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../../supervisor/early.h"
#include "networks.h"

enum { MOST_TAKEN = 64, MOST_RESTING = 24 }; /* beyond these they go with their sandboxes */
enum { SEEN_BYTES = 32 << 10 };
/* That a multicast group was joined and left is told about some turns of the kernel's clock later, and seen only then. And a closed
 * netlink socket, of which process 1 has one, is counted until the kernel's readers have gone by. */
#define REST_SECONDS 0.15
#define LONGEST_REST_SECONDS 1.0
/* Where nobody asks for sandboxes none is held: each is some hundred KiB of the kernel's. */
#define KEPT_SECONDS 5.0

struct network {
    int fd;
    long pid;
    double ended;
};

/* No socket of anybody's lives: the file's other lines count for the whole machine. */
static const char sockets[] = "/proc/self/net/sockstat", no_socket[] = "sockets: used 0\n";
/* Packets and what became of them, and what a socket can leave behind without having sent any: to have looked for a way is enough for
 * IPv6 to keep one for that processor, and some kernels count who looks for one of IPv4. */
static const char *const seen_in[] = {
    "/proc/self/net/dev",  "/proc/self/net/snmp",  "/proc/self/net/snmp6",         "/proc/self/net/netstat",   "/proc/self/net/igmp",
    "/proc/self/net/igmp6", "/proc/self/net/ip6_flowlabel", "/proc/self/net/rt6_stats", "/proc/self/net/fib_triestat",
};
enum { FILES = sizeof seen_in / sizeof seen_in[0] };

static enum { UNKNOWN, POSSIBLE, IMPOSSIBLE } state;
/* What changes with each sandbox, in whole pages: a child that gives them back leaves nothing to the template that it has to copy. */
static struct {
    _Alignas(AVIATO_PAGE_BYTES) int home;
    int entered, taken_count, resting_count;
    struct network taken[MOST_TAKEN], resting[MOST_RESTING];
    char of_this[SEEN_BYTES];
} own;
static char of_new[SEEN_BYTES];
static size_t new_size;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Returns how much of a file there is, or -1 where it is more than the room. One that this kernel lacks is empty. */
static ssize_t read_file(const char *path, char *into, size_t room) {
    size_t size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    for (ssize_t more; size < room; size += (size_t)more)
        if ((more = read(fd, into + size, room - size)) <= 0) {
            close(fd);
            return more < 0 ? -1 : (ssize_t)size;
        }
    close(fd);
    return -1;
}

static ssize_t see(char *into) {
    size_t size = 0;
    for (int i = 0; i < FILES; i++) {
        ssize_t more = read_file(seen_in[i], into + size, SEEN_BYTES - size);
        if (more < 0)
            return -1;
        size += (size_t)more;
    }
    return (ssize_t)size;
}

static int has_sockets(void) {
    char read[1024];
    ssize_t size = read_file(sockets, read, sizeof read);
    return size < (ssize_t)sizeof no_socket - 1 || memcmp(read, no_socket, sizeof no_socket - 1) != 0;
}

/* For IPv4 it keeps the way as well, and tells by netlink alone since when: all that is kept becomes invalid. */
static int forget_routes(void) {
    int fd = open("/proc/sys/net/ipv4/route/flush", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t written = write(fd, "-1", 2);
    close(fd);
    return written == 2 ? 0 : -1;
}

static int is_as_new(void) {
    return forget_routes() == 0 && see(own.of_this) == (ssize_t)new_size && memcmp(own.of_this, of_new, new_size) == 0;
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
    return own.entered = here();
}

/* What a new one looks like, and whether there is a way back from it. */
static int begin(void) {
    if (state != UNKNOWN)
        return state == POSSIBLE;
    state = IMPOSSIBLE;
    own.entered = -1;
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
    ssize_t size = has_sockets() || forget_routes() < 0 ? -1 : see(of_new);
    int made = own.entered;
    own.entered = -1;
    if (setns(own.home, CLONE_NEWNET) < 0 || size <= 0) {
        close(made);
        close(own.home);
        return 0;
    }
    new_size = (size_t)size;
    state = POSSIBLE;
    own.resting[own.resting_count++] = (struct network){.fd = made};
    return 1;
}

/* The one that rests the longest, out of the list. */
static int take_first(void) {
    int fd = own.resting[0].fd;
    memmove(own.resting, own.resting + 1, (size_t)--own.resting_count * sizeof own.resting[0]);
    return fd;
}

int aviato_enter_network(void) {
    if (!begin())
        return 0;
    while (own.resting_count && now() - own.resting[0].ended >= REST_SECONDS) {
        int is_in = setns(own.resting[0].fd, CLONE_NEWNET) == 0, used = is_in && has_sockets();
        if (used && now() - own.resting[0].ended < LONGEST_REST_SECONDS)
            break;
        int fd = take_first();
        if (is_in && !used && is_as_new()) {
            own.entered = fd;
            return 1;
        }
        close(fd);
    }
    if (enter_new() >= 0)
        return 1;
    aviato_leave_network(-1);
    return 0;
}

static void rest(int fd) {
    if (own.resting_count < MOST_RESTING)
        own.resting[own.resting_count++] = (struct network){.fd = fd, .ended = now()};
    else
        close(fd);
}

void aviato_leave_network(long pid) {
    if (state != POSSIBLE)
        return;
    if (own.entered >= 0 && pid <= 0)
        rest(own.entered);
    else if (own.entered >= 0 && own.taken_count < MOST_TAKEN)
        own.taken[own.taken_count++] = (struct network){.fd = own.entered, .pid = pid};
    else if (own.entered >= 0)
        close(own.entered);
    own.entered = -1;
    if (setns(own.home, CLONE_NEWNET) < 0)
        state = IMPOSSIBLE; /* it went before; whatever has changed, no namespace is given twice from here on */
}

int aviato_drop_networks(void) {
    while (own.resting_count && now() - own.resting[0].ended >= KEPT_SECONDS)
        close(take_first());
    return own.resting_count ? (int)((own.resting[0].ended + KEPT_SECONDS - now()) * 1000) + 1 : -1;
}

void aviato_forget_networks(void) {
    for (int i = 0; i < own.taken_count; i++)
        close(own.taken[i].fd);
    for (int i = 0; i < own.resting_count; i++)
        close(own.resting[i].fd);
    if (state == POSSIBLE) {
        close(own.home);
        if (own.entered >= 0)
            close(own.entered);
    }
    aviato_give_back(&own, sizeof own);
}

void aviato_network_ended(long pid) {
    for (int i = 0; i < own.taken_count; i++)
        if (own.taken[i].pid == pid) {
            rest(own.taken[i].fd);
            own.taken[i] = own.taken[--own.taken_count];
            return;
        }
}
