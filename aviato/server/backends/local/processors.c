/* Control groups by which sandboxes share out the processors.
 *
 * Without groups the kernel shares them out by session (`sched_autogroup_enabled`) or by process, and code inside has as many of both
 * as it likes. So each sandbox is born in a group of its own, process 1 included, and whatever it starts stays there. A group is made
 * once and had by one sandbox after the other. In version 1 it is the template that goes there for the moment of the clone: to move
 * oneself, thread by thread, takes microseconds, where to move another process waits for every processor of the machine. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../supervisor/early.h"
#include "birth.h"
#include "processors.h"

#define NAME "aviato-share-"
#define KEPT_SECONDS 2.0
#define LEFT_SECONDS 5.0 /* between two looks at what other templates left while sandboxes live in it */

enum { MOST_GROUPS = 4096, NOBODY = 0, NONE = -1, REMOVED = -1, PAGE_BYTES = 1 << 16 };

/* In pages of its own, of which a child lets go: what the template writes to afterwards would leave each child a copy. */
static struct {
    char directory[PATH_MAX];
    int unified;
    int home;              /* the template's own, in version 1 */
    int entered;           /* which, or NONE */
    int descriptor;        /* of its directory, in version 2 */
    double ended;          /* when somebody left one the last time */
    double looked;         /* when it was looked at what others left, see `left` */
    int left;              /* whether something of that stayed */
    int free;              /* how many nobody has */
    int count;             /* how many numbers were given */
    long owners[MOST_GROUPS]; /* who has each, or NOBODY, or REMOVED */
} __attribute__((aligned(PAGE_BYTES))) own = {.home = -1, .entered = NONE, .descriptor = -1};

static void name_group(char *path, size_t size, int number, const char *file) {
    snprintf(path, size, "%s/" NAME "%ld-%d%s", own.directory, (long)getpid(), number, file);
}

/* Also who is dead and not collected: in many a container nobody collects what has lost its parent. */
static int is_gone(long pid) {
    char path[64], said[512];
    if (kill((pid_t)pid, 0) < 0 && errno == ESRCH)
        return 1;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, said, sizeof said - 1);
    if (fd >= 0)
        close(fd);
    said[size > 0 ? size : 0] = 0;
    const char *state = strrchr(said, ')');
    return state && (strncmp(state, ") Z", 3) == 0 || strncmp(state, ") X", 3) == 0);
}

/* Whose group has this name; 0 where it is none. */
static long maker_of(const char *name) {
    char *rest;
    if (strncmp(name, NAME, strlen(NAME)) != 0)
        return 0;
    long pid = strtol(name + strlen(NAME), &rest, 10);
    return *rest == '-' && pid > 0 ? pid : 0;
}

static void remove_left(void) {
    DIR *directory = opendir(own.directory);
    long maker, asked = 0;
    int gone = 0;
    own.looked = early_now();
    own.left = 0;
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (!(maker = maker_of(entry->d_name)))
            continue;
        if (maker != asked) /* those of one come together, for the most part */
            gone = is_gone(asked = maker);
        if (gone && unlinkat(dirfd(directory), entry->d_name, AT_REMOVEDIR) < 0 && errno == EBUSY)
            own.left = 1; /* its sandbox lives, and is no child of this template that would be told its end */
    }
    if (directory)
        closedir(directory);
}

void aviato_share_processors(const char *directory, int unified) {
    char path[PATH_MAX + 64];
    if (own.directory[0] || strlen(directory) >= sizeof own.directory)
        return;
    snprintf(path, sizeof path, "%s/tasks", directory);
    if (!unified && (own.home = open(path, O_WRONLY | O_CLOEXEC)) < 0)
        return;
    strcpy(own.directory, directory);
    own.unified = unified;
    remove_left();
}

/* Where a child is born by this, or -1. */
static int open_group(int number) {
    char path[PATH_MAX + 64];
    name_group(path, sizeof path, number, own.unified ? "" : "/tasks");
    return open(path, own.unified ? O_PATH | O_DIRECTORY | O_CLOEXEC : O_WRONLY | O_CLOEXEC);
}

static int made_group(int number) {
    char path[PATH_MAX + 64];
    name_group(path, sizeof path, number, "");
    return mkdir(path, 0755) == 0 || errno == EEXIST ? open_group(number) : -1;
}

/* One that nobody has, or else a number for another. */
static int find_group(void) {
    int wanted = own.free ? NOBODY : REMOVED;
    for (int number = 0; number < own.count; number++)
        if (own.owners[number] == wanted)
            return number;
    return own.count;
}

EXPORTED int aviato_enter_group(void) {
    if (!own.directory[0])
        return -1;
    int number = find_group();
    if (number == MOST_GROUPS)
        return -1;
    int is_free = number < own.count && own.owners[number] == NOBODY, fd = is_free ? open_group(number) : -1;
    if (fd < 0 && (fd = made_group(number)) < 0) /* one that was there may have been taken away */
        return -1;
    own.free -= is_free;
    own.count = number < own.count ? own.count : number + 1;
    own.owners[number] = REMOVED; /* until somebody has it */
    own.entered = number;
    if (own.unified)
        return own.descriptor = fd;
    if (write(fd, "0", 1) != 1) {
        own.owners[number] = NOBODY;
        own.free++;
        own.entered = NONE;
    }
    close(fd);
    return -1;
}

EXPORTED void aviato_leave_group(long pid) {
    if (own.entered == NONE)
        return;
    own.owners[own.entered] = pid > 0 ? pid : NOBODY;
    own.free += pid <= 0;
    own.entered = NONE;
    if (own.unified) {
        close(own.descriptor);
    } else if (write(own.home, "0", 1) != 1) {
        own.directory[0] = 0; /* nothing is shared out by a template that cannot come back */
    }
}

void aviato_forget_groups(void) {
    if (own.home >= 0)
        close(own.home);
    if (own.entered != NONE && own.unified)
        close(own.descriptor);
    madvise(&own, sizeof own, MADV_DONTNEED);
}

EXPORTED void aviato_group_ended(long pid) {
    for (int number = 0; number < own.count; number++)
        if (own.owners[number] == pid) {
            own.owners[number] = NOBODY;
            own.free++;
            own.ended = early_now();
            return;
        }
}

static void remove_group(int number) {
    char path[PATH_MAX + 64];
    name_group(path, sizeof path, number, "");
    rmdir(path);
}

static int milliseconds_until(double time) {
    double left = time - early_now();
    return left > 0 ? (int)(left * 1000) + 1 : 0;
}

static void drop_free(void) {
    for (int number = 0; number < own.count; number++)
        if (own.owners[number] == NOBODY) {
            remove_group(number);
            own.owners[number] = REMOVED;
        }
    own.free = 0;
}

int aviato_drop_groups(void) {
    if (own.free && !milliseconds_until(own.ended + KEPT_SECONDS))
        drop_free();
    if (own.left && !milliseconds_until(own.looked + LEFT_SECONDS))
        remove_left();
    int of_free = own.free ? milliseconds_until(own.ended + KEPT_SECONDS) : -1;
    int of_left = own.left ? milliseconds_until(own.looked + LEFT_SECONDS) : -1;
    return of_free < 0 || (of_left >= 0 && of_left < of_free) ? of_left : of_free;
}

void aviato_remove_groups(void) {
    for (int number = 0; own.directory[0] && number < own.count; number++)
        remove_group(number); /* where a sandbox lives it stays, for a later template to find */
}
