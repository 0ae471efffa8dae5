/* What commands take and leave, as `usage.py`, `watch.py` and `disk.py` have it: only whether it is so little that no limit is near. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "early_parts.h"

enum { SLACK_BYTES = 256 << 10, BEGUN_BYTES = 128 << 10, CLOCK_SCHEDULED = 2, SAMPLE_FACTOR = 4, STATUS_BYTES = 4096 };
/* What may lie in the writable layer without anybody having to count it again and again. */
enum { FEW_BYTES = 1 << 20, FEW_ENTRIES = 128, FEW_LEVELS = 8, LISTED_BYTES = 4096 };

/* So long may all commands have run together, with so much memory allowed: nobody fills that in this time. */
#define REST_SECONDS 0.05
enum { REST_BYTES = 1 << 30, FEW_RESIDENT_BYTES = 32 << 20 };

static _Alignas(AVIATO_PAGE_BYTES) char status_text[STATUS_BYTES];

struct entry { /* of a directory, as the kernel tells it */
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
};

/* A small file of /proc; its size, or -1. */
static ssize_t read_proc(const char *path, char *text, size_t size) {
    int fd = openat(AVIATO_PROC, path, O_RDONLY | O_CLOEXEC);
    ssize_t count = fd < 0 ? -1 : read(fd, text, size - 1);
    if (fd >= 0)
        close(fd);
    text[count > 0 ? count : 0] = 0;
    return count;
}

void early_look(struct command *command) {
    char path[64];
    command->looked = early_now();
    snprintf(path, sizeof path, "%d/status", command->pid);
    const char *line = read_proc(path, status_text, STATUS_BYTES) > 0 ? strstr(status_text, "\nVmHWM:") : NULL;
    if (line) {
        int64_t peak = strtoll(line + 7, NULL, 10) << 10;
        command->peak = peak > command->peak ? peak : command->peak;
    }
}

/* The largest resident set, from what is known of it; -1: nothing. */
int64_t early_peak(const struct command *command, int64_t most_bytes) {
    if (most_bytes > command->own_peak + SLACK_BYTES)
        return most_bytes;
    return command->peak >= BEGUN_BYTES ? command->peak : -1; /* a sample of less fell into its exec */
}

int early_is_unsure(const struct command *command) { return command->peak <= command->own_peak + SLACK_BYTES; }

/* How long a process has run; cheap: who has not run has not changed. */
static uint64_t ran_nanoseconds(int pid) {
    struct timespec time = {0, 0};
    int gone = clock_gettime((clockid_t)(~(unsigned)pid << 3 | CLOCK_SCHEDULED), &time) < 0;
    return gone ? 0 : (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

void early_forget_status(void) {
    aviato_give_back(status_text, sizeof status_text);
}

static void look_again(struct command *command) {
    if (!early_is_unsure(command))
        return;
    uint64_t ran = ran_nanoseconds(command->pid);
    if (ran != command->ran) {
        command->ran = ran;
        early_look(command);
    }
}

void early_sample(struct command *command) {
    look_again(command);
    command->next_sample = early_is_unsure(command) ? early_now() + command->pause : -1;
    command->pause *= SAMPLE_FACTOR;
}

struct count {
    double bytes, entries;
};

static int count_in(int directory, struct count *count, int level) {
    char listed[LISTED_BYTES];
    for (;;) {
        long size = syscall(SYS_getdents64, directory, listed, sizeof listed);
        if (size <= 0)
            return size == 0;
        for (long at = 0; at < size;) {
            const struct entry *entry = (const struct entry *)(listed + at);
            struct stat found;
            at += entry->size;
            if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0)
                continue;
            if (fstatat(directory, entry->name, &found, AT_SYMLINK_NOFOLLOW) < 0 || ++count->entries > FEW_ENTRIES)
                return 0;
            count->bytes += (double)found.st_blocks * 512;
            if (!S_ISDIR(found.st_mode))
                continue;
            int inner = level ? openat(directory, entry->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
            int done = inner >= 0 && count_in(inner, count, level - 1);
            if (inner >= 0)
                close(inner);
            if (!done)
                return 0;
        }
    }
}

/* Whether next to nothing is in the files in memory, and nothing in what System V has: no process shows either. */
static int is_little_stored(void) {
    static const char *const places[] = {"/dev/shm", "/run", "/etc", "/.aviato"}, *const tables[] = {"sysvipc/shm", "sysvipc/sem", "sysvipc/msg"};
    char text[1024];
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct statfs found;
        if (statfs(places[i], &found) == 0 && found.f_type == TMPFS_MAGIC &&
            (double)(found.f_blocks - found.f_bfree) * (double)found.f_bsize > FEW_BYTES)
            return 0;
    }
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const char *head = read_proc(tables[i], text, sizeof text) > 0 ? strchr(text, '\n') : NULL;
        if (head && head[1])
            return 0;
    }
    return 1;
}

static int is_in_memory(int fd) {
    struct statfs found;
    return fstatfs(fd, &found) < 0 || found.f_type == TMPFS_MAGIC;
}

/* Whether what commands have left, on disk or in memory, is so little that its limits are far. */
int early_is_little(const struct configuration *configuration) {
    struct count count = {0, 0};
    if (!configuration || (configuration->memory_bytes >= 0 && !is_little_stored()))
        return 0;
    if (configuration->disk_bytes < 0 && configuration->inodes < 0)
        return 1;
    int layer = openat(LAYER, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int done = layer >= 0 && count_in(layer, &count, FEW_LEVELS);
    /* What file calls have written is known, and goes on by itself nowhere; where it is memory it counts as such. */
    double written = layer >= 0 && self.written > 0 && !is_in_memory(layer) ? self.written : 0;
    if (layer >= 0)
        close(layer);
    if (done) {
        self.disk_used = count.bytes;
        self.disk_coming = 0;
    }
    return done && count.bytes <= FEW_BYTES + written && (configuration->disk_bytes < 0 || 2 * count.bytes < configuration->disk_bytes) &&
           (configuration->inodes < 0 || 2 * count.entries < configuration->inodes);
}

/* -- one that does nothing --------------------------------------------------------------------------------------------- */

/* The processor time of a command that is over; it counts for those that wait. */
double early_spent(const struct rusage *used) {
    double seconds = (double)(used->ru_utime.tv_sec + used->ru_stime.tv_sec) + (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1e6;
    self.spent_seconds += seconds;
    return seconds;
}

/* Whether a process is the only one, has one thread, and has nothing open but what it was given. */
static int is_alone(int pid) {
    char path[64], text[64], own[16];
    snprintf(own, sizeof own, "%d ", pid);
    if (read_proc("self/task/1/children", text, sizeof text) < 0 || strcmp(text, own) != 0)
        return 0;
    /* Nor was anybody born since: what those take is not in the time that it has run. */
    const char *newest = read_proc("loadavg", text, sizeof text) > 0 ? strrchr(text, ' ') : NULL;
    if (!newest || strtol(newest, NULL, 10) != pid)
        return 0;
    snprintf(path, sizeof path, "%d/task/%d/children", pid, pid);
    if (read_proc(path, text, sizeof text) != 0)
        return 0;
    const char *threads = strstr(status_text, "\nThreads:\t");
    if (!threads || strncmp(threads + 10, "1\n", 2) != 0)
        return 0;
    snprintf(path, sizeof path, "%d/fd", pid);
    int folder = openat(AVIATO_PROC, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
    if (folder < 0)
        return 0;
    char listed[LISTED_BYTES];
    for (long size; count >= 0 && (size = syscall(SYS_getdents64, folder, listed, sizeof listed)) > 0;)
        for (long at = 0; at < size; at += ((const struct entry *)(listed + at))->size) {
            const char *name = ((const struct entry *)(listed + at))->name;
            struct stat found;
            if (name[0] == '.')
                continue;
            if (fstatat(folder, name, &found, 0) < 0 || !(S_ISFIFO(found.st_mode) || S_ISCHR(found.st_mode)) || ++count > 3) {
                count = -1;
                break;
            }
        }
    close(folder);
    return count >= 0;
}

/* Whether a command that is still there can be left alone: it is small, has hardly run, and has had no time to take anything that
 * would not be seen here (files in memory, say). Most that stay so long wait for something. */
int early_rests(const struct configuration *configuration, struct command *command) {
    uint64_t ran = ran_nanoseconds(command->pid);
    if (ran && ran == command->rested)
        return 1;
    if (!ran || self.spent_seconds + (double)ran / 1e9 > REST_SECONDS || !configuration ||
        (configuration->memory_bytes >= 0 && configuration->memory_bytes < REST_BYTES))
        return 0;
    early_look(command); /* reads its status */
    if (command->peak < 0 || command->peak > FEW_RESIDENT_BYTES || !is_alone(command->pid) || !early_is_little(configuration))
        return 0;
    command->rested = ran;
    return 1;
}
