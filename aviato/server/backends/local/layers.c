/* Writable layers that one sandbox after the other can have.
 *
 * A sandbox's root is an overlay: layers of its own above what all have in common. Its directories, the mount and their end are a
 * tenth of what a short command takes, and most of these commands write nothing there. So process 1 sends its root here when it has
 * mounted it, before anybody else is inside, and a sandbox whose layers are as they were made leaves them to the next one: the same
 * mount, by the same id, below another process 1. Whatever differs, or cannot be seen, it goes and the next one has a new one.
 *
 * What is written, removed or changed anywhere in the tree is first of all an entry in the upper directory. So that directory says
 * it all: it is empty, has no property but those that it was made with, and its times are set back. And no open file outlives its
 * sandbox: where a socket of its network is left, descriptors may be on their way in it, with their locks and what they count for. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "../../supervisor/early.h"
#include "birth.h"
#include "layers.h"

enum { MOST = 64 }; /* of those that live, too: beyond it the oldest is forgotten, and its layers go with it */
/* Longer than the server has one at hand, and than it takes to bury what is dead. */
#define KEPT_SECONDS 6.0

struct layers {
    uint32_t number, uid, gid;
    int sock;    /* by which the root comes, until the sandbox is buried; -1 then */
    int sockets; /* the list of its network's Unix sockets, until then */
    int mount;   /* the root, from then on */
    int pid;     /* as long as the sandbox lives */
    double since;
    struct timespec modified;
    off_t size;
    blkcnt_t blocks;
};

/* In whole pages, as that of the networks. */
static struct {
    _Alignas(AVIATO_PAGE_BYTES) int count;
    struct layers all[MOST];
} own;

/* What an empty directory has that was made here; the first one tells. */
static struct properties {
    long flags;
    struct fsxattr more;
} fresh;
static int fresh_is_known;

static void take_out(int i) {
    if (own.all[i].sockets >= 0)
        close(own.all[i].sockets);
    memmove(own.all + i, own.all + i + 1, (size_t)(--own.count - i) * sizeof own.all[0]);
}

static void let_go(int i) {
    close(own.all[i].sock >= 0 ? own.all[i].sock : own.all[i].mount);
    take_out(i);
}

static int find(uint32_t number) {
    for (int i = own.count - 1; i >= 0; i--)
        if (own.all[i].number == number)
            return i;
    return -1;
}

/* Flags of a directory, and what else a file system keeps that it tells by no other way. One that keeps none has none. */
static void look(int fd, struct properties *found) {
    memset(found, 0, sizeof *found);
    if (ioctl(fd, FS_IOC_GETFLAGS, &found->flags) < 0)
        found->flags = 0;
    if (ioctl(fd, FS_IOC_FSGETXATTR, &found->more) < 0)
        memset(&found->more, 0, sizeof found->more);
}

static int same_time(struct timespec one, struct timespec other) { return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec; }

static int is_empty(int fd) {
    char entries[1024];
    long size = syscall(SYS_getdents64, fd, entries, sizeof entries);
    /* Two of the least that an entry can be: itself and its parent. */
    return size == 48 && syscall(SYS_getdents64, fd, entries, sizeof entries) == 0;
}

/* The kernel's own alone, with which a new one begins as well. */
static int has_no_attributes(int fd) {
    static const char uuid[] = "user.overlay.uuid";
    char names[64];
    ssize_t size = flistxattr(fd, names, sizeof names);
    return size == 0 || (size == sizeof uuid && memcmp(names, uuid, sizeof uuid) == 0) || (size < 0 && errno == EOPNOTSUPP);
}

static int is_untouched(const struct layers *layers, int fd) {
    struct stat seen;
    struct properties found;
    if (fstat(fd, &seen) < 0 || seen.st_mode != (S_IFDIR | 0755) || seen.st_uid != layers->uid || seen.st_gid != layers->gid ||
        !same_time(seen.st_mtim, layers->modified) || seen.st_size != layers->size || seen.st_blocks != layers->blocks || !is_empty(fd) ||
        !has_no_attributes(fd))
        return 0;
    look(fd, &found);
    if (!fresh_is_known || memcmp(&found, &fresh, sizeof fresh) != 0)
        return 0;
    /* When it was read last is what whoever reads it says, or sets, and when it was changed can be chosen, too: by trying until the
     * clock says what is wanted. The next one is to find nothing of that. */
    struct timespec times[2] = {layers->modified, layers->modified};
    return futimens(fd, times) == 0;
}

/* Nothing but the line above all. */
static int has_no_sockets(int fd) {
    char list[1024];
    ssize_t size = fd < 0 ? -1 : pread(fd, list, sizeof list, 0);
    return size > 0 && memchr(list, '\n', (size_t)size) == list + size - 1;
}

/* The kernel copies there what it is about to put above; who is killed meanwhile might leave some of it. */
static int has_unused_work(void) {
    int fd = open("work/work", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW | O_NOATIME);
    if (fd < 0)
        return errno == EACCES; /* an ordinary user has no right to it, and nothing in it is ever shown */
    char entries[1024];
    long size = syscall(SYS_getdents64, fd, entries, sizeof entries);
    close(fd);
    /* In one that is `volatile` there is a directory that says so. Others would be written to disk to be looked at. */
    return size == 80 && memmem(entries, (size_t)size, "incompat", sizeof "incompat") != NULL;
}

static int has_own_note(void) {
    struct stat seen;
    return lstat("note", &seen) == 0 && S_ISREG(seen.st_mode) && seen.st_nlink == 1;
}

void aviato_await_layers(uint32_t number, long pid, uint32_t uid, uint32_t gid, int sock) {
    struct stat seen;
    struct layers layers = {.number = number, .pid = (int)pid, .uid = uid, .gid = gid, .sock = sock, .mount = -1};
    char path[64];
    int fd = open("upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW | O_NOATIME);
    int is_seen = fd >= 0 && fstat(fd, &seen) == 0;
    if (is_seen && !fresh_is_known) {
        look(fd, &fresh);
        fresh_is_known = 1;
    }
    if (fd >= 0)
        close(fd);
    if (!is_seen) {
        close(sock);
        return;
    }
    layers.modified = seen.st_mtim;
    layers.size = seen.st_size;
    layers.blocks = seen.st_blocks;
    snprintf(path, sizeof path, "/proc/%ld/net/unix", pid);
    layers.sockets = open(path, O_RDONLY | O_CLOEXEC);
    if (own.count == MOST)
        let_go(0);
    own.all[own.count++] = layers;
}

EXPORTED void aviato_layers_ended(long pid) {
    for (int i = 0; i < own.count; i++)
        if (own.all[i].pid == pid) {
            own.all[i].pid = 0;
            own.all[i].since = early_now();
            return;
        }
}

int aviato_bury_layers(uint32_t number, int *rest) {
    int i = find(number);
    *rest = -1;
    if (i < 0)
        return 0;
    struct layers *layers = &own.all[i];
    int fd = open("upper", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW | O_NOATIME);
    int is_free = layers->pid == 0 && layers->sock >= 0 && has_no_sockets(layers->sockets) && has_own_note() && has_unused_work() &&
                  fd >= 0 && is_untouched(layers, fd);
    if (fd >= 0)
        close(fd);
    int mount = -1;
    if (is_free && aviato_receive(layers->sock, MSG_DONTWAIT, &mount) < 0)
        mount = -1;
    if (mount < 0) {
        *rest = layers->sock >= 0 ? layers->sock : layers->mount;
        take_out(i);
        return 0;
    }
    close(layers->sock);
    close(layers->sockets);
    layers->sock = layers->sockets = -1;
    layers->mount = mount;
    layers->since = early_now();
    return 1;
}

int aviato_take_layers(uint32_t number) {
    int i = find(number), mount = i < 0 ? -1 : own.all[i].mount;
    if (mount >= 0)
        take_out(i);
    return mount;
}

int aviato_is_sound(int mount) {
    int fd = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int result = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0)
        close(fd);
    return result == 0;
}

int aviato_drop_layers(void) {
    double next = -1;
    for (int i = own.count - 1; i >= 0; i--) {
        double left = own.all[i].since + KEPT_SECONDS - early_now();
        if (own.all[i].pid != 0)
            continue;
        if (left <= 0)
            let_go(i);
        else if (next < 0 || left < next)
            next = left;
    }
    return next < 0 ? -1 : (int)(next * 1000) + 1;
}

void aviato_forget_layers(void) {
    while (own.count)
        let_go(own.count - 1);
    aviato_give_back(&own, sizeof own);
}
