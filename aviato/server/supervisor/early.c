/* Process 1 before Python: most sandboxes run a few short commands, and each page that Python writes to for them is a copy of the
 * template's. So this says HELLO, runs plain commands one after the other, and knows nothing else. For whatever it does not know it
 * hands over to Python (`takeover.py`), in the middle of a command too: with all that it holds, and none of it decided.
 *
 * What it does is what `program.py`, `commands.py`, `command.py` and `spawn.py` do; these say why. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "early.h"

enum { CONNECTION = 3, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN };
enum { BACKLOG = 16 };
enum { FRAME_DATA = 3, FRAME_EXIT = 5, FRAME_KEEPALIVE = 7, FRAME_HELLO = 32, FRAME_REQUEST = 33, FRAME_REPLY = 34, FRAME_ACK = 36, FRAME_ENDED = 39 };
enum { FRAME_ACCEPTED = 1, FRAME_STARTED = 2 };
/* What the head of a frame says of its payload, in the place of a stream. */
enum { PREPARED_CONFIGURATION = 1, PREPARED_COMMAND = 2, PLAIN_PING = 3, PLAIN_STOP = 4, ACKNOWLEDGED = 1 };
enum { STDOUT = 1, STDERR = 2 };
enum { HEAD_BYTES = 16, IN_BYTES = 256 << 10, OUTPUT_BYTES = 64 << 10, ROOM_BYTES = 1 << 20, STATE_BYTES = 128 << 10 };
enum { RESULT_BYTES = 512, STATUS_BYTES = 4096 };
/* What may lie in the writable layer without anybody having to count it again and again. */
enum { FEW_BYTES = 1 << 20, FEW_ENTRIES = 128, FEW_LEVELS = 8, LISTED_BYTES = 4096 };
enum { MOST_COMMANDS = 128, MOST_PAST = 16384, MOST_WORDS = 4096, ID_BYTES = 32, RESERVED_DESCRIPTORS = 32, MOST_DEAD = 256 };
enum { SLACK_BYTES = 256 << 10, SCHED_FLAG_RESET = 1, TURN_NANOSECONDS = 100000, CLOCK_SCHEDULED = 2 };

static const double ORPHAN_SECONDS = 600, WATCH_SECONDS = 0.1, FIRST_SAMPLE_SECONDS = 0.004, SAMPLE_FACTOR = 4;

struct frame {
    uint8_t type, stream;
    uint16_t channel;
    uint32_t length;
    const char *payload;
};

struct configuration { /* behind it: the working directory, and the environment as NAME=VALUE */
    uint32_t size;
    uint32_t environment;
    int32_t nice;
    uint32_t unused;
    double orphan_seconds, lifetime_seconds, idle_seconds; /* negative: none, as of what follows */
    double disk_bytes, inodes;
};

struct request { /* behind it: the id, the working directory, the words of the command, and its environment */
    uint32_t size;
    uint32_t words;
    uint32_t environment;
    uint32_t has_directory;
    double timeout_seconds;
};

struct stream {
    int fd;
    char *bytes;
    size_t count, sent;
};

struct command {
    char id[ID_BYTES];
    int pid;
    unsigned channel;
    uint64_t mark;
    double started, timeout_seconds;
    double looked, next_sample, pause;
    int64_t own_peak, peak;
    uint64_t ran;
    struct stream streams[2];
    char *spec;
    size_t spec_size;
    char *result; /* NULL: it runs */
    size_t result_size;
};

struct past {
    uint64_t mark;
    char id[ID_BYTES];
};

/* Of one process 1: a child of the template has these pages as zeros, and touches few of them. */
static _Alignas(16) char in[IN_BYTES], room[ROOM_BYTES];
static char state[STATE_BYTES], status_text[STATUS_BYTES];
static size_t in_begin, in_end, room_used, room_base;
static char *unsent;
static size_t unsent_size;
static struct command commands[MOST_COMMANDS];
static int command_count;
static struct past past[MOST_PAST];
static uint64_t past_hashes[MOST_PAST];
static uint32_t past_count;
static char *words[MOST_WORDS + 1], *variables[MOST_WORDS + 1];
static struct configuration *configuration;
static size_t configuration_size;
static double configured, last_heard, last_call, last_end, look_due = -1;
static uint64_t pid_namespace;
static const struct aviato_early *given;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint64_t hash_of(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

static char *take_room(size_t size) {
    size = (size + 7) & ~(size_t)7;
    if (size > ROOM_BYTES - room_used)
        return NULL;
    char *taken = room + room_used;
    room_used += size;
    return taken;
}

static struct command *running(void) {
    struct command *last = command_count ? &commands[command_count - 1] : NULL;
    return last && !last->result ? last : NULL;
}

/* -- the connection ---------------------------------------------------------------------------------------------------- */

static size_t put_head(char *head, int type, int stream, unsigned channel, size_t length, uint64_t offset) {
    head[0] = (char)type;
    head[1] = (char)stream;
    head[2] = (char)(channel >> 8);
    head[3] = (char)channel;
    for (int i = 0; i < 4; i++)
        head[4 + i] = (char)(length >> (24 - 8 * i));
    for (int i = 0; i < 8; i++)
        head[8 + i] = (char)(offset >> (56 - 8 * i));
    return HEAD_BYTES;
}

/* Send it all, or keep what the socket does not take for Python. Returns whether there is nothing kept. */
static int send_all(struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    ssize_t sent;
    do
        sent = sendmsg(CONNECTION, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    size_t done = sent > 0 ? (size_t)sent : 0, all = 0;
    for (int i = 0; i < count; i++)
        all += parts[i].iov_len;
    if (done == all)
        return 1;
    /* Not in the room, which may be full: a sandbox whose server does not read is rare. */
    if ((unsent = malloc(all - done)) == NULL)
        _exit(1);
    for (int i = 0; i < count; i++) {
        size_t skipped = done < parts[i].iov_len ? done : parts[i].iov_len;
        memcpy(unsent + unsent_size, (char *)parts[i].iov_base + skipped, parts[i].iov_len - skipped);
        unsent_size += parts[i].iov_len - skipped;
        done -= skipped;
    }
    return 0;
}

/* What a command has printed and what was not sent of it, and with a result that too. */
static int send_news(struct command *command) {
    char heads[3][HEAD_BYTES];
    struct iovec parts[6];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        struct stream *stream = &command->streams[i];
        size_t size = stream->count - stream->sent;
        if (size) {
            put_head(heads[i], FRAME_DATA, STDOUT + i, command->channel, size, stream->sent);
            parts[count++] = (struct iovec){heads[i], HEAD_BYTES};
            parts[count++] = (struct iovec){stream->bytes + stream->sent, size};
            stream->sent = stream->count;
        }
    }
    if (command->result) {
        put_head(heads[2], FRAME_EXIT, 0, command->channel, command->result_size, 0);
        parts[count++] = (struct iovec){heads[2], HEAD_BYTES};
        parts[count++] = (struct iovec){command->result, command->result_size};
    }
    return count == 0 || send_all(parts, count);
}

static int say_hello(void) {
    char head[HEAD_BYTES], rest[128];
    int size = snprintf(rest, sizeof rest, "\"pid_namespace\":%llu,\"orphan_timeout_seconds\":%.1f,\"execs\":{}}",
                        (unsigned long long)pid_namespace, ORPHAN_SECONDS);
    put_head(head, FRAME_HELLO, 0, 0, given->hello_size + (size_t)size, 0);
    struct iovec parts[] = {{head, HEAD_BYTES}, {(void *)given->hello, given->hello_size}, {rest, (size_t)size}};
    return send_all(parts, 3);
}

static int reply(unsigned channel) {
    char text[HEAD_BYTES + 2] = {0};
    memcpy(text + put_head(text, FRAME_REPLY, 0, channel, 2, 0), "{}", 2);
    struct iovec part = {text, sizeof text};
    return send_all(&part, 1);
}

/* -- starting a command ------------------------------------------------------------------------------------------------ */

static int64_t namespace_number(const char *path) {
    char text[64];
    ssize_t size = readlinkat(AVIATO_PROC, path, text, sizeof text - 1);
    if (size <= 0)
        return -1;
    text[size] = 0;
    const char *number = strchr(text, '[');
    return number ? (int64_t)strtoull(number + 1, NULL, 10) : -1;
}

/* Strings one behind the other into an array; returns where they end, or NULL where they are not whole. */
static char *take_strings(char *text, char *end, char **strings, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        char *next = text < end ? memchr(text, 0, (size_t)(end - text)) : NULL;
        if (!next)
            return NULL;
        strings[i] = text;
        text = next + 1;
    }
    return text;
}

static int is_same_name(const char *one, const char *other) {
    while (*one && *one == *other && *one != '=')
        one++, other++;
    return *one == '=' && *other == '=';
}

static const char *value_of(char **environment, const char *name) {
    size_t length = strlen(name);
    for (; *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return NULL;
}

static int is_program(const char *path) {
    struct stat found;
    return access(path, X_OK) == 0 && stat(path, &found) == 0 && !S_ISDIR(found.st_mode);
}

/* The file that a command's first word means; NULL: let Python look, which says why there is none. */
static const char *find_program(const char *name, const char *path, char *found, size_t size) {
    if (strchr(name, '/'))
        return is_program(name) ? name : NULL;
    if (!*name)
        return NULL;
    for (;; path++) {
        size_t length = strcspn(path, ":");
        int written = length ? snprintf(found, size, "%.*s/%s", (int)length, path, name) : snprintf(found, size, "./%s", name);
        if (written > 0 && (size_t)written < size && is_program(found))
            return found;
        path += length;
        if (!*path)
            return NULL;
    }
}

static int start_program(const char *program, const int *theirs) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t all, none;
    pid_t pid = -1;
    sigfillset(&all);
    sigdelset(&all, SIGKILL);
    sigdelset(&all, SIGSTOP);
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    int error = 0;
    for (int i = 0; i < 3 && !error; i++)
        error = posix_spawn_file_actions_adddup2(&actions, theirs[i], i);
    if (!error)
        error = posix_spawn(&pid, program, &actions, &attributes, words, variables);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return error ? -1 : pid;
}

static int is_low(int fd) {
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
           (limit.rlim_cur == RLIM_INFINITY || (rlim_t)fd + RESERVED_DESCRIPTORS < limit.rlim_cur);
}

/* Returns the process, with our ends of its pipes, or -1. */
static int connect_and_start(const char *program, struct command *command) {
    int pipes[2][2] = {{-1, -1}, {-1, -1}}, pid = -1;
    if (pipe2(pipes[0], O_CLOEXEC) == 0 && pipe2(pipes[1], O_CLOEXEC) == 0 && is_low(pipes[1][0]) && is_low(pipes[1][1])) {
        int theirs[] = {AVIATO_NULL, pipes[0][1], pipes[1][1]};
        pid = start_program(program, theirs);
    }
    for (int i = 0; i < 2; i++) {
        if (pipes[i][1] >= 0)
            close(pipes[i][1]);
        if (pid < 0 && pipes[i][0] >= 0)
            close(pipes[i][0]);
        else if (pid >= 0)
            fcntl(pipes[i][0], F_SETFL, O_NONBLOCK);
        command->streams[i].fd = pid < 0 ? -1 : pipes[i][0];
    }
    return pid;
}

static void offer(int pid) {
    char path[64];
    snprintf(path, sizeof path, "%d/oom_score_adj", pid);
    int fd = openat(AVIATO_PROC, path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (write(fd, given->badness, given->badness_size) < 0) {
            /* As it is, then. */
        }
        close(fd);
    }
}

/* -- what it uses ------------------------------------------------------------------------------------------------------ */

static void look(struct command *command) {
    char path[64];
    command->looked = now();
    snprintf(path, sizeof path, "%d/status", command->pid);
    int fd = openat(AVIATO_PROC, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t size = read(fd, status_text, STATUS_BYTES - 1);
    close(fd);
    status_text[size > 0 ? size : 0] = 0;
    const char *line = strstr(status_text, "\nVmHWM:");
    if (line) {
        int64_t peak = strtoll(line + 7, NULL, 10) << 10;
        command->peak = peak > command->peak ? peak : command->peak;
    }
}

static int is_unsure(const struct command *command) { return command->peak <= command->own_peak + SLACK_BYTES; }

static void look_again(struct command *command) {
    struct timespec time = {0, 0};
    if (!is_unsure(command))
        return;
    int gone = clock_gettime((clockid_t)(~(unsigned)command->pid << 3 | CLOCK_SCHEDULED), &time) < 0;
    uint64_t ran = gone ? 0 : (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
    if (ran != command->ran) {
        command->ran = ran;
        look(command);
    }
}

static void sample(struct command *command) {
    look_again(command);
    command->next_sample = is_unsure(command) ? now() + command->pause : -1;
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
            const struct entry {
                uint64_t inode;
                int64_t offset;
                uint16_t size;
                uint8_t type;
                char name[];
            } *entry = (const struct entry *)(listed + at);
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

/* Whether what commands have left on disk is so little that its limits are far. */
static int is_little(void) {
    struct count count = {0, 0};
    if (!configuration || (configuration->disk_bytes < 0 && configuration->inodes < 0))
        return configuration != NULL;
    int layer = openat(LAYER, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int done = layer >= 0 && count_in(layer, &count, FEW_LEVELS);
    if (layer >= 0)
        close(layer);
    return done && count.bytes <= FEW_BYTES && (configuration->disk_bytes < 0 || 2 * count.bytes < configuration->disk_bytes) &&
           (configuration->inodes < 0 || 2 * count.entries < configuration->inodes);
}

/* -- a command --------------------------------------------------------------------------------------------------------- */

/* Whether the id is one that only Python can say something about. */
static int is_known(const char *id) {
    for (int i = 0; i < command_count; i++)
        if (strcmp(commands[i].id, id) == 0)
            return 1;
    uint64_t hash = hash_of(id);
    for (uint32_t i = 0; i < past_count; i++)
        if (past_hashes[i] == hash)
            return 1;
    return 0;
}

/* All that is asked for, from the request: words, variables, id and directory. Returns whether it can be had here. */
static int understand(struct request *request, size_t length, char **id, char **directory) {
    if (length < sizeof *request || request->size < sizeof *request || request->size >= length || !configuration ||
        request->words < 1 || request->words > MOST_WORDS || request->environment > MOST_WORDS ||
        configuration->environment > MOST_WORDS - request->environment)
        return 0;
    char *text = (char *)(request + 1), *end = (char *)request + request->size;
    if (!(text = take_strings(text, end, id, 1)) || !(text = take_strings(text, end, directory, 1)) ||
        !(text = take_strings(text, end, words, request->words)) || !take_strings(text, end, variables, request->environment))
        return 0;
    words[request->words] = NULL;
    char *own[1];
    uint32_t count = request->environment;
    text = (char *)(configuration + 1) + strlen((char *)(configuration + 1)) + 1;
    end = (char *)configuration + configuration->size;
    for (uint32_t i = 0; i < configuration->environment; i++) {
        if (!(text = take_strings(text, end, own, 1)))
            return 0;
        uint32_t other = 0;
        while (other < request->environment && !is_same_name(own[0], variables[other]))
            other++;
        if (other == request->environment)
            variables[count++] = own[0];
    }
    variables[count] = NULL;
    return strlen(*id) < ID_BYTES && !strpbrk(*id, "\"\\") && !is_known(*id);
}

/* Returns whether it was begun; if not, nothing has happened. */
static int begin_command(const struct frame *frame) {
    struct request *request = (struct request *)frame->payload;
    char *id, *directory, found[PATH_MAX];
    if (command_count == MOST_COMMANDS || past_count == MOST_PAST || running() || !understand(request, frame->length, &id, &directory))
        return 0;
    size_t before = room_used, spec_size = frame->length - request->size;
    struct command *command = &commands[command_count];
    memset(command, 0, sizeof *command);
    command->spec = take_room(spec_size);
    command->streams[0].bytes = take_room(OUTPUT_BYTES);
    command->streams[1].bytes = take_room(OUTPUT_BYTES + RESULT_BYTES);
    if (!command->spec || !command->streams[0].bytes || !command->streams[1].bytes)
        goto no;
    /* Whoever else lives in here could hold up the start: Python knows how to do it then. */
    if (kill(-1, 0) == 0 || chdir((char *)(configuration + 1)) < 0 || (request->has_directory && chdir(directory) < 0))
        goto no;
    const char *path = value_of(variables, "PATH"), *program = find_program(words[0], path ? path : given->path, found, sizeof found);
    int64_t mark = program && unshare(CLONE_NEWUTS) == 0 ? namespace_number("thread-self/ns/uts") : -1;
    if (mark < 0 || (command->pid = connect_and_start(program, command)) < 0)
        goto no;
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    command->own_peak = (int64_t)own.ru_maxrss << 10;
    command->peak = -1;
    command->pause = FIRST_SAMPLE_SECONDS;
    strcpy(command->id, id);
    command->mark = (uint64_t)mark;
    command->channel = frame->channel;
    command->started = now();
    command->timeout_seconds = request->timeout_seconds;
    command->spec_size = spec_size;
    memcpy(command->spec, (char *)request + request->size, spec_size);
    if (look_due < 0)
        look_due = command->started + WATCH_SECONDS;
    command_count++;
    if (configuration->nice)
        setpriority(PRIO_PROCESS, (id_t)command->pid, configuration->nice);
    offer(command->pid);
    if (chdir("/") < 0) {
        /* It is there. */
    }
    return 1;
no:
    room_used = before;
    if (chdir("/") < 0) {
        /* It is there. */
    }
    return 0;
}

static int announce(const struct command *command) {
    char text[3 * HEAD_BYTES + ID_BYTES + 32], accepted[ID_BYTES + 32];
    int size = snprintf(accepted, sizeof accepted, "{\"exec_id\":\"%s\"}", command->id);
    size_t used = put_head(text, FRAME_ACCEPTED, 0, command->channel, (size_t)size, 0);
    memcpy(text + used, accepted, (size_t)size);
    used += (size_t)size;
    used += put_head(text + used, FRAME_STARTED, 0, command->channel, 2, 0);
    memcpy(text + used, "{}", 2);
    struct iovec part = {text, used + 2};
    return send_all(&part, 1);
}

/* Take what is in a pipe. Returns whether there is still room. */
static int read_stream(struct command *command, struct stream *stream) {
    while (stream->fd >= 0) {
        if (stream->count == OUTPUT_BYTES)
            return 0;
        ssize_t size = read(stream->fd, stream->bytes + stream->count, OUTPUT_BYTES - stream->count);
        if (size < 0 && errno == EINTR)
            continue;
        if (size < 0 && errno == EAGAIN)
            return 1;
        if (size <= 0) {
            close(stream->fd);
            stream->fd = -1;
            break;
        }
        stream->count += (size_t)size;
        if (now() - command->looked >= FIRST_SAMPLE_SECONDS && is_unsure(command))
            look(command);
    }
    return 1;
}

static void keep_result(struct command *command, int status, const struct rusage *used) {
    double ended = now(), processor = (double)used->ru_utime.tv_sec + (double)used->ru_stime.tv_sec +
                                      (double)(used->ru_utime.tv_usec + used->ru_stime.tv_usec) / 1e6;
    int64_t most = (int64_t)used->ru_maxrss << 10, peak = most > command->own_peak + SLACK_BYTES ? most : command->peak;
    int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    char signal[16] = "null", bytes[32] = "null";
    if (by)
        snprintf(signal, sizeof signal, "%d", by);
    if (peak >= 0)
        snprintf(bytes, sizeof bytes, "%lld", (long long)peak);
    /* The pieces of room move together, since most commands say little. */
    struct stream *streams = command->streams;
    char *next = streams[0].bytes + ((streams[0].count + 7) & ~(size_t)7);
    streams[1].bytes = memmove(next, streams[1].bytes, streams[1].count);
    command->result = next + ((streams[1].count + 7) & ~(size_t)7);
    command->result_size = (size_t)snprintf(
        command->result, RESULT_BYTES,
        "{\"returncode\": %d, \"signal\": %s, \"timed_out\": false, \"oom_killed\": false, \"cancelled\": false, "
        "\"duration_seconds\": %.6f, \"stdout_bytes_total\": %zu, \"stderr_bytes_total\": %zu, \"cpu_seconds\": %.6f, "
        "\"max_rss_bytes\": %s}",
        by ? 128 + by : WEXITSTATUS(status), signal, ended - command->started, streams[0].count, streams[1].count, processor, bytes);
    room_used = (size_t)(command->result + ((command->result_size + 8) & ~(size_t)7) - room);
    command->pid = 0;
    last_end = ended;
}

/* -- the loop ---------------------------------------------------------------------------------------------------------- */

/* Forget a command whose result has arrived. */
static int acknowledged(const struct frame *frame) {
    static const char begin[] = "{\"exec_id\":\"";
    if (frame->stream != ACKNOWLEDGED || past_count == MOST_PAST || frame->length < sizeof begin ||
        memcmp(frame->payload, begin, sizeof begin - 1) != 0)
        return 0;
    for (int i = 0; i < command_count; i++) {
        size_t length = strlen(commands[i].id);
        const char *id = frame->payload + sizeof begin - 1;
        if (!commands[i].result || frame->length < sizeof begin + length || memcmp(id, commands[i].id, length) != 0 || id[length] != '"')
            continue;
        past_hashes[past_count] = hash_of(commands[i].id);
        past[past_count].mark = commands[i].mark;
        memcpy(past[past_count++].id, commands[i].id, ID_BYTES);
        memmove(&commands[i], &commands[i + 1], (size_t)(--command_count - i) * sizeof commands[0]);
        if (!command_count)
            room_used = room_base;
        return 1;
    }
    return 0;
}

static int configure(const struct frame *frame) {
    const struct configuration *asked = (const struct configuration *)frame->payload;
    if (configuration || frame->length < sizeof *asked || asked->size <= sizeof *asked || asked->size >= frame->length ||
        !memchr(asked + 1, 0, asked->size - sizeof *asked))
        return 0;
    char *kept = take_room(frame->length);
    if (!kept)
        return 0;
    configuration = memcpy(kept, frame->payload, frame->length);
    configuration_size = frame->length;
    configured = now();
    room_base = room_used;
    return 1;
}

/* End where nobody is inside and everything has been said; else return. */
static void stop(void) {
    static const char why[] = "{\"reason\": \"stopped\", \"returncode\": null}\n";
    enum { WHY_BYTES = sizeof why - 1 };
    char text[HEAD_BYTES + WHY_BYTES];
    if (command_count || kill(-1, 0) == 0)
        return;
    if (write(NOTE, why, WHY_BYTES) < 0) {
        /* Then only the connection tells it. */
    }
    memcpy(text + put_head(text, FRAME_ENDED, 0, 0, WHY_BYTES - 1, 0), why, WHY_BYTES);
    struct iovec part = {text, HEAD_BYTES + WHY_BYTES - 1};
    if (send_all(&part, 1))
        _exit(0);
}

/* Returns whether it was dealt with: if not, it is left where it is. */
static int deal_with(const struct frame *frame) {
    switch (frame->type) {
    case FRAME_KEEPALIVE:
        return 1;
    case FRAME_ACK:
        return acknowledged(frame);
    case FRAME_REQUEST:
        if (frame->stream == PREPARED_CONFIGURATION)
            return configure(frame);
        if (frame->stream == PLAIN_PING)
            return reply(frame->channel);
        if (frame->stream == PLAIN_STOP)
            stop();
        if (frame->stream != PREPARED_COMMAND || !begin_command(frame))
            return 0;
        last_call = commands[command_count - 1].started;
        announce(&commands[command_count - 1]); /* what is not sent is seen below */
        sample(&commands[command_count - 1]);
        return 1;
    }
    return 0;
}

/* What has come over the connection. Returns whether all of it was dealt with. */
static int receive(void) {
    if (in_begin == in_end)
        in_begin = in_end = 0;
    else if (in_begin) {
        memmove(in, in + in_begin, in_end - in_begin);
        in_end -= in_begin;
        in_begin = 0;
    }
    if (in_end == IN_BYTES)
        return 0;
    ssize_t size = recv(CONNECTION, in + in_end, IN_BYTES - in_end, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return 1;
    if (size <= 0)
        return 0; /* Python finds the same. */
    in_end += (size_t)size;
    last_heard = now();
    while (in_end - in_begin >= HEAD_BYTES) {
        const unsigned char *head = (unsigned char *)in + in_begin;
        struct frame frame = {.type = head[0], .stream = head[1], .channel = (uint16_t)(head[2] << 8 | head[3])};
        frame.length = (uint32_t)head[4] << 24 | (uint32_t)head[5] << 16 | (uint32_t)head[6] << 8 | head[7];
        frame.payload = (const char *)head + HEAD_BYTES;
        if (in_end - in_begin - HEAD_BYTES < frame.length)
            return 1;
        /* The structures in it are read where they are, so it has to lie as they do. */
        if ((uintptr_t)frame.payload % 8) {
            size_t shift = (uintptr_t)head % 8;
            if (in_begin < shift)
                return 0;
            memmove(in + in_begin - shift, in + in_begin, in_end - in_begin);
            in_begin -= shift;
            in_end -= shift;
            continue;
        }
        if (!deal_with(&frame))
            return 0;
        in_begin += HEAD_BYTES + frame.length;
        if (unsent_size)
            return 0;
    }
    return 1;
}

/* The dead. Returns whether nothing is left to be done about them. */
static int collect(void) {
    char told[1024];
    struct command *command = running();
    if (read(CHILDREN, told, sizeof told) < 0 && errno != EAGAIN)
        return 0;
    for (int count = 0; count < MOST_DEAD; count++) {
        siginfo_t info = {0};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == 0)
            return 1;
        if (info.si_code != CLD_EXITED && info.si_code != CLD_KILLED && info.si_code != CLD_DUMPED)
            return 0; /* one that has made us its tracer */
        if (!command || info.si_pid != command->pid) {
            waitpid(info.si_pid, NULL, WNOHANG);
            continue;
        }
        for (int i = 0; i < 2; i++)
            if (!read_stream(command, &command->streams[i]) || command->streams[i].fd >= 0)
                return 0; /* it is not over with its own process, or has much to say */
        int status;
        struct rusage used;
        if (wait4(command->pid, &status, WNOHANG, &used) != command->pid)
            return 0;
        keep_result(command, status, &used);
        command = NULL;
        send_news(&commands[command_count - 1]);
    }
    return 0;
}

static double earlier(double one, double other) { return other < 0 || one < other ? one : other; }

/* When Python has to take over, if nothing comes. */
static double last_moment(void) {
    const struct command *command = running();
    double orphan = configuration ? configuration->orphan_seconds : ORPHAN_SECONDS, due = last_heard + orphan;
    if (configuration && configuration->lifetime_seconds >= 0)
        due = earlier(due, configured + configuration->lifetime_seconds);
    if (configuration && configuration->idle_seconds >= 0 && !command)
        due = earlier(due, (last_call > last_end ? last_call : last_end) + configuration->idle_seconds);
    if (command) {
        due = earlier(due, command->started + WATCH_SECONDS);
        if (command->timeout_seconds >= 0)
            due = earlier(due, command->started + command->timeout_seconds);
    }
    return due;
}

/* One turn. Returns whether there is another one. */
static int turn(void) {
    struct command *command = running();
    struct pollfd polled[5] = {{CONNECTION, POLLIN, 0}, {CHILDREN, POLLIN, 0}, {LISTENER, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    double due = last_moment();
    if (look_due >= 0)
        due = earlier(due, look_due);
    if (command) {
        polled[3].fd = command->streams[0].fd;
        polled[4].fd = command->streams[1].fd;
        if (command->next_sample >= 0)
            due = earlier(due, command->next_sample);
    }
    double left = due - now();
    left = left < 0 ? 0 : left > 3600 ? 3600 : left;
    int ready = poll(polled, 5, (int)(left * 1000) + (left > 0));
    if (ready < 0 && errno != EINTR)
        return 0;
    if (command) {
        for (int i = 0; i < 2; i++)
            if (ready > 0 && polled[3 + i].revents && !read_stream(command, &command->streams[i]))
                return 0;
        if (command->next_sample >= 0 && now() >= command->next_sample)
            sample(command);
    }
    if (ready > 0 && polled[1].revents && !collect())
        return 0;
    if (running() && !send_news(command))
        return 0;
    if (unsent_size || (ready > 0 && polled[0].revents && !receive()) || (ready > 0 && polled[2].revents) || unsent_size)
        return 0;
    if (command && !running() && kill(-1, 0) == 0)
        return 0; /* it has left somebody behind, who has to be watched */
    if (look_due >= 0 && now() >= look_due) {
        if (!is_little())
            return 0;
        look_due = running() ? running()->started + WATCH_SECONDS : -1;
    }
    return ready > 0 || now() < last_moment();
}

/* -- what Python is told ----------------------------------------------------------------------------------------------- */

static size_t tell(size_t used, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(state + used, STATE_BYTES - used, format, arguments);
    va_end(arguments);
    if (size < 0 || (size_t)size >= STATE_BYTES - used)
        _exit(1); /* not possible: it holds a bounded number of numbers */
    return used + (size_t)size;
}

static size_t tell_bytes(size_t used, const char *name, const void *bytes, size_t size) {
    return tell(used, "\"%s\":[%llu,%zu],", name, (unsigned long long)(uintptr_t)bytes, size);
}

static size_t tell_all(void) {
    size_t used = tell(0, "{\"pid_namespace\":%llu,\"last_heard\":%.9f,\"last_call\":%.9f,\"last_end\":%.9f,\"configured\":%.9f,\"due\":%.9f,",
                       (unsigned long long)pid_namespace, last_heard, last_call, last_end, configured, last_moment());
    size_t skipped = configuration ? configuration->size : 0;
    used = tell_bytes(used, "configuration", (char *)configuration + skipped, configuration_size - skipped);
    used = tell_bytes(used, "received", in + in_begin, in_end - in_begin);
    used = tell_bytes(used, "unsent", unsent, unsent_size);
    used = tell_bytes(used, "past", past, past_count * sizeof past[0]);
    used = tell(used, "\"commands\":[");
    for (int i = 0; i < command_count; i++) {
        const struct command *command = &commands[i];
        used = tell(used, "%s{\"pid\":%d,\"mark\":%llu,\"channel\":%u,\"started\":%.9f,\"own_peak\":%lld,\"peak\":%lld,", i ? "," : "",
                    command->pid, (unsigned long long)command->mark, command->channel, command->started, (long long)command->own_peak,
                    (long long)command->peak);
        used = tell_bytes(used, "spec", command->spec, command->spec_size);
        used = tell_bytes(used, "result", command->result, command->result_size);
        used = tell(used, "\"streams\":[");
        for (int j = 0; j < 2; j++) {
            const struct stream *stream = &command->streams[j];
            used = tell(used, "%s{\"fd\":%d,\"sent\":%zu,", j ? "," : "", stream->fd, stream->sent);
            used = tell_bytes(used, "bytes", stream->bytes, stream->count);
            used = tell(used - 1, "}"); /* in the place of the comma */
        }
        used = tell(used, "]}");
    }
    return tell(used, "]}");
}

/* -- its begin --------------------------------------------------------------------------------------------------------- */

static int open_at(int number, const char *path, int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    if (fd < 0 || dup3(fd, number, O_CLOEXEC) < 0)
        return -1;
    return close(fd);
}

static void take_short_turns(void) {
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {48, SCHED_OTHER, SCHED_FLAG_RESET, 0, 0, TURN_NANOSECONDS, 0, 0};
    if (sched_getscheduler(0) != SCHED_OTHER)
        return;
    attributes.nice = getpriority(PRIO_PROCESS, 0);
    syscall(SYS_sched_setattr, 0, &attributes, 0);
}

/* All descriptors that are needed ever: whoever is inside can take away from this process what new ones need. */
static int open_all(void) {
    int waiting = epoll_create1(EPOLL_CLOEXEC);
    if (waiting < 0 || dup3(waiting, AVIATO_EPOLL, O_CLOEXEC) < 0 || close(waiting) < 0)
        return -1;
    if (open_at(AVIATO_PROC, "/proc", O_RDONLY | O_DIRECTORY) < 0 || open_at(AVIATO_NULL, "/dev/null", O_RDONLY) < 0)
        return -1;
    open_at(AVIATO_TERMINALS, "/dev/pts", O_RDONLY | O_DIRECTORY); /* where there are any */
    int64_t number = namespace_number("self/ns/pid");
    pid_namespace = (uint64_t)number;
    return number < 0 || fcntl(LISTENER, F_SETFL, O_NONBLOCK) < 0 || listen(LISTENER, BACKLOG) < 0 ? -1 : 0;
}

/* Be the supervisor as long as that is simple. Returns the size of what Python is told, 0 where this did not begin. */
size_t aviato_early(struct aviato_early *early) {
    given = early;
    /* Whoever could take from this process what a later start of Python needs must not come first. */
    if (prctl(PR_GET_SECCOMP) != SECCOMP_MODE_FILTER)
        return 0;
    early->state = state;
    if (open_all() < 0)
        return 0;
    take_short_turns();
    last_heard = last_call = last_end = now();
    if (say_hello())
        while (turn()) {
        }
    return tell_all();
}
