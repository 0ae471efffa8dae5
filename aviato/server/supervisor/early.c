/* Process 1 before Python: most sandboxes run a few short commands, and each page that Python writes to for them is a copy of the
 * template's. So this says HELLO, runs plain commands one after the other, and knows nothing else. For whatever it does not know it
 * hands over to Python (`takeover.py`), in the middle of a command too: with all that it holds, and none of it decided.
 *
 * What it does is what `program.py`, `commands.py`, `command.py` and `spawn.py` do; these say why. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "early_parts.h"

enum { BACKLOG = 16 };
/* What the head of a frame says of its payload, in the place of a stream. */
enum { PREPARED_CONFIGURATION = 1, PREPARED_COMMAND, PLAIN_PING, PLAIN_STOP, PREPARED_WRITE, PREPARED_READ, ACKNOWLEDGED = 1 };
enum { IN_BYTES = 1280 << 10, OUTPUT_BYTES = 64 << 10, RESULT_BYTES = 512, STATE_BYTES = 128 << 10 };
enum { MOST_COMMANDS = 128, MOST_PAST = 16384, MOST_DEAD = 256 };
#define QUIET_SECONDS 0.25
/* So far down a call may have come in its stack, and so near is what giving back needs of it. */
enum { DEEP_BYTES = 64 << 10, NEAR_BYTES = 512 };
enum { JUST_STARTED_BYTES = 1 << 20, SCHED_FLAG_RESET = 1, TURN_NANOSECONDS = 100000 };

struct past { /* commands that are over, and calls that were done, which have no mark */
    uint64_t mark;
    char id[ID_BYTES];
};

struct process self;
static _Alignas(AVIATO_PAGE_BYTES) char in[IN_BYTES];
static char state[STATE_BYTES];
/* Of what is confirmed: the hashes from the last to the first, so that those of the first few dozen share a page with what they are of. */
static struct {
    _Alignas(AVIATO_PAGE_BYTES) char unused[AVIATO_PAGE_BYTES / 2];
    uint32_t hashes[MOST_PAST];
    struct past ids[MOST_PAST];
} past;

void *aviato_stack(size_t *size) {
    *size = sizeof self.stack;
    mprotect(self.guard, sizeof self.guard, PROT_NONE); /* where pages are larger it is none, or some of the end too */
    return self.stack;
}

char *aviato_title(void) { return self.title; }

double early_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static uint32_t hash_of(const char *text) {
    uint64_t hash = 14695981039346656037u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return (uint32_t)(hash ^ hash >> 32);
}

static char *take_room(size_t size) {
    size = (size + 7) & ~(size_t)7;
    if (size > ROOM_BYTES - self.room_used)
        return NULL;
    char *taken = self.room + self.room_used;
    self.room_used += size;
    return taken;
}

static struct command *running(void) {
    return self.last && !self.last->result ? self.last : NULL;
}

/* -- a command --------------------------------------------------------------------------------------------------------- */

int early_has_room(void) { return self.past_count < MOST_PAST; }

void early_remember(const char *id, uint64_t mark) {
    struct past *kept = &past.ids[self.past_count];
    past.hashes[MOST_PAST - 1 - self.past_count++] = hash_of(id);
    kept->mark = mark;
    strncpy(kept->id, id, ID_BYTES);
}

/* Whether it may be over or done. */
int early_is_past(const char *id) {
    uint32_t hash = hash_of(id);
    for (uint32_t i = 0; i < self.past_count; i++)
        if (past.hashes[MOST_PAST - 1 - i] == hash)
            return 1;
    return 0;
}

/* Whether the id is one that only Python can say something about. */
static int is_known(const char *id) {
    for (const struct command *command = self.first; command; command = command->next)
        if (strcmp(command->id, id) == 0)
            return 1;
    return early_is_past(id);
}

static int enter(const char *path) {
    int fd = early_open(path, O_PATH | O_DIRECTORY), result = fd < 0 ? -1 : fchdir(fd);
    if (fd >= 0)
        close(fd);
    return result;
}

/* Returns whether it was begun; if not, nothing has happened. */
static __attribute__((noinline)) int begin_command(const struct frame *frame) {
    struct request *request = (struct request *)frame->payload;
    char *id, *directory;
    /* Whose time is over, or as good as that, starts nothing here. */
    double lifetime = self.configuration ? self.configuration->lifetime_seconds : -1;
    if ((lifetime >= 0 && early_now() + FIRST_SAMPLE_SECONDS >= self.configured + lifetime) || self.command_count == MOST_COMMANDS || !early_has_room() || running() || !self.configuration ||
        !early_understand(self.configuration, request, frame->length, &id, &directory) || is_known(id))
        return 0;
    size_t before = self.room_used, spec_size = frame->length - request->size;
    char *spec = take_room(sizeof(struct command)), *outputs[2];
    struct command *command = (struct command *)spec;
    spec = take_room(spec_size);
    outputs[0] = take_room(OUTPUT_BYTES);
    outputs[1] = take_room(OUTPUT_BYTES + RESULT_BYTES);
    if (!command || !spec || !outputs[0] || !outputs[1])
        goto no;
    *command = (struct command){.spec = spec, .streams = {{.bytes = outputs[0]}, {.bytes = outputs[1]}}};
    /* Whoever else lives in here could hold up the start: Python knows how to do it then. */
    if (!early_is_alone() || enter((char *)(self.configuration + 1)) < 0 || (request->flags & HAS_DIRECTORY && enter(directory) < 0))
        goto no;
    if ((command->pid = early_start(self.given, command)) < 0)
        goto no;
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    command->own_peak = (int64_t)own.ru_maxrss << 10;
    command->peak = -1;
    command->pause = FIRST_SAMPLE_SECONDS;
    strcpy(command->id, id);
    command->channel = frame->channel;
    command->started = early_now();
    command->rests_until = command->started + WATCH_SECONDS;
    command->together_until = request->flags & NOBODY_READS_ALONG ? command->started + TOGETHER_SECONDS : 0;
    command->timeout_seconds = request->timeout_seconds;
    command->spec_size = spec_size;
    memcpy(command->spec, (char *)request + request->size, spec_size);
    if (!self.look_due)
        self.look_due = command->started + WATCH_SECONDS;
    *(self.last ? &self.last->next : &self.first) = command;
    self.last = command;
    self.command_count++;
    if (self.configuration->nice)
        setpriority(PRIO_PROCESS, (id_t)command->pid, self.configuration->nice);
    early_offer(self.given, command->pid);
    if (chdir("/") < 0) {
        /* It is there. */
    }
    return 1;
no:
    self.room_used = before;
    if (chdir("/") < 0) {
        /* It is there. */
    }
    return 0;
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
        /* A look just after the start has seen a program that was hardly there. */
        if ((command->peak < JUST_STARTED_BYTES || early_now() - command->looked >= FIRST_SAMPLE_SECONDS) && early_is_unsure(command))
            early_look(command);
    }
    return 1;
}

static __attribute__((noinline)) void keep_result(struct command *command, int status, const struct rusage *used) {
    double ended = early_now(), processor = early_spent(used);
    int64_t most = (int64_t)used->ru_maxrss << 10, peak = early_peak(command, most);
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
    self.room_used = (size_t)(command->result + ((command->result_size + 8) & ~(size_t)7) - self.room);
    command->pid = 0;
    self.last_end = ended;
}

/* -- the loop ---------------------------------------------------------------------------------------------------------- */

/* Forget a command whose result has arrived. */
static int acknowledged(const struct frame *frame) {
    static const char begin[] = "{\"exec_id\":\"";
    if (frame->stream != ACKNOWLEDGED || !early_has_room() || frame->length < sizeof begin ||
        memcmp(frame->payload, begin, sizeof begin - 1) != 0)
        return 0;
    struct command *before = NULL;
    for (struct command *command = self.first; command; before = command, command = command->next) {
        size_t length = strlen(command->id);
        const char *id = frame->payload + sizeof begin - 1;
        if (!command->result || frame->length < sizeof begin + length || memcmp(id, command->id, length) != 0 || id[length] != '"')
            continue;
        early_remember(command->id, command->mark);
        *(before ? &before->next : &self.first) = command->next;
        if (self.last == command)
            self.last = before;
        if (--self.command_count == 0)
            self.room_used = self.room_base;
        return 1;
    }
    return 0;
}

static int configure(const struct frame *frame) {
    const struct configuration *asked = (const struct configuration *)frame->payload;
    if (self.configuration || frame->length < sizeof *asked || asked->size <= sizeof *asked || asked->size >= frame->length ||
        !memchr(asked + 1, 0, asked->size - sizeof *asked))
        return 0;
    char *kept = take_room(frame->length);
    if (!kept)
        return 0;
    self.configuration = memcpy(kept, frame->payload, frame->length);
    self.configuration_size = frame->length;
    self.configured = early_now();
    self.room_base = self.room_used;
    return 1;
}

/* End where nobody is inside and everything has been said; else return. */
static void stop(void) {
    static const char why[] = "{\"reason\": \"stopped\", \"returncode\": null}\n";
    enum { WHY_BYTES = sizeof why - 1 };
    if (self.command_count || !early_is_alone())
        return;
    if (write(NOTE, why, WHY_BYTES) < 0) {
        /* Then only the connection tells it. */
    }
    if (early_say(FRAME_ENDED, 0, why, WHY_BYTES - 1))
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
        if (frame->stream == PLAIN_PING) {
            early_say(FRAME_REPLY, frame->channel, "{}", 2); /* what is not sent of it is seen below, as of an announcement */
            return 1;
        }
        if (frame->stream == PLAIN_STOP)
            stop();
        if (frame->stream == PREPARED_WRITE)
            return early_write_file(frame);
        if (frame->stream == PREPARED_READ)
            return early_read_file(frame, in + self.in_end, IN_BYTES - self.in_end);
        if (frame->stream != PREPARED_COMMAND || !begin_command(frame))
            return 0;
        self.last_call = self.last->started;
        if (!self.last->together_until)
            early_announce(self.last);
        early_sample(self.last);
        return 1;
    case FRAME_END:
        return early_end_of_file(frame);
    }
    return 0;
}

/* What has come over the connection. Returns whether all of it was dealt with. */
static __attribute__((noinline)) int receive(void) {
    if (self.in_begin == self.in_end)
        self.in_begin = self.in_end = 0;
    else if (self.in_begin) {
        memmove(in, in + self.in_begin, self.in_end - self.in_begin);
        self.in_end -= self.in_begin;
        self.in_begin = 0;
    }
    if (self.in_end == IN_BYTES || self.descriptor_count == MOST_DESCRIPTORS)
        return 0;
    ssize_t size = early_receive(in + self.in_end, IN_BYTES - self.in_end);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return 1;
    if (size <= 0)
        return 0; /* Python finds the same. */
    self.in_end += (size_t)size;
    self.last_heard = early_now();
    while (self.in_end - self.in_begin >= HEAD_BYTES) {
        const unsigned char *head = (unsigned char *)in + self.in_begin;
        struct frame frame = {.type = head[0], .stream = head[1], .channel = (uint16_t)(head[2] << 8 | head[3])};
        frame.length = (uint32_t)head[4] << 24 | (uint32_t)head[5] << 16 | (uint32_t)head[6] << 8 | head[7];
        frame.payload = (const char *)head + HEAD_BYTES;
        if (frame.length > IN_BYTES - HEAD_BYTES)
            return 0; /* it never fits here, or nowhere at all: Python closes the connection then */
        if (self.in_end - self.in_begin - HEAD_BYTES < frame.length)
            return 1;
        /* The structures in it are read where they are, so it has to lie as they do. */
        if ((uintptr_t)frame.payload % 8) {
            size_t shift = (uintptr_t)head % 8;
            if (self.in_begin < shift)
                return 0;
            memmove(in + self.in_begin - shift, in + self.in_begin, self.in_end - self.in_begin);
            self.in_begin -= shift;
            self.in_end -= shift;
            continue;
        }
        if (!deal_with(&frame))
            return 0;
        self.in_begin += HEAD_BYTES + frame.length;
        if (early_unsent_size)
            return 0;
    }
    return 1;
}

/* The dead. Returns whether nothing is left to be done about them. */
static __attribute__((noinline)) int collect(void) {
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
        early_send_news(self.last);
    }
    return 0;
}

void aviato_give_back(void *begin, size_t size) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = ((uintptr_t)begin + page - 1) & -page, last = ((uintptr_t)begin + size) & -page;
    if (first < last)
        madvise((void *)first, last - first, MADV_DONTNEED);
}

/* Nothing has come for a moment. */
static void tidy(void) {
    char here;
    if (self.in_begin == self.in_end)
        aviato_give_back(in, sizeof in);
    if (!running())
        aviato_give_back(self.room + self.room_used, sizeof self.room - self.room_used);
    aviato_give_back(self.given->used_up, self.given->used_up_size);
    /* Below what is called from here. */
    aviato_give_back((void *)((uintptr_t)&here - NEAR_BYTES - DEEP_BYTES), DEEP_BYTES);
    early_forget_words();
    early_forget_status();
    early_forget_files();
}

static double earlier(double one, double other) { return other <= 0 || one < other ? one : other; }

/* When Python has to take over, if nothing comes. */
static double last_moment(void) {
    const struct command *command = running();
    double orphan = self.configuration ? self.configuration->orphan_seconds : ORPHAN_SECONDS, due = self.last_heard + orphan;
    if (self.configuration && self.configuration->lifetime_seconds >= 0)
        due = earlier(due, self.configured + self.configuration->lifetime_seconds);
    if (self.configuration && self.configuration->idle_seconds >= 0 && !command)
        due = earlier(due, (self.last_call > self.last_end ? self.last_call : self.last_end) + self.configuration->idle_seconds);
    if (command) {
        due = earlier(due, command->rests_until);
        if (command->timeout_seconds >= 0)
            due = earlier(due, command->started + command->timeout_seconds);
    }
    return due;
}

/* One turn. Returns whether there is another one. */
static int turn(void) {
    struct command *command = running();
    struct pollfd polled[5] = {{CONNECTION, POLLIN, 0}, {CHILDREN, POLLIN, 0}, {LISTENER, POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    double due = earlier(earlier(last_moment(), self.look_due), self.tidy_due);
    if (command) {
        polled[3].fd = command->streams[0].fd;
        polled[4].fd = command->streams[1].fd;
        if (command->next_sample >= 0)
            due = earlier(due, command->next_sample);
        if (!command->announced)
            due = earlier(due, command->together_until);
    }
    double left = due - early_now();
    left = left < 0 ? 0 : left > 3600 ? 3600 : left;
    int ready = poll(polled, 5, (int)(left * 1000) + (left > 0)), rests = 0;
    if (ready < 0 && errno != EINTR)
        return 0;
    if (ready > 0) {
        self.tidy_due = early_now() + QUIET_SECONDS;
    } else if (self.tidy_due && early_now() >= self.tidy_due) {
        tidy();
        self.tidy_due = 0;
    }
    if (command) {
        for (int i = 0; i < 2; i++)
            if (ready > 0 && polled[3 + i].revents && !read_stream(command, &command->streams[i]))
                return 0;
        if (command->next_sample >= 0 && early_now() >= command->next_sample)
            early_sample(command);
        if (early_now() >= command->rests_until && (rests = early_rests(self.configuration, command)))
            command->rests_until = early_now() + WATCH_SECONDS;
    }
    if (ready > 0 && polled[1].revents && !collect())
        return 0;
    if (running() && !early_send_news(command))
        return 0;
    if (early_unsent_size || (ready > 0 && polled[0].revents && !receive()) || (ready > 0 && polled[2].revents) || early_unsent_size)
        return 0;
    if (command && !running() && !early_is_alone())
        return 0; /* it has left somebody behind, who has to be watched */
    if (self.look_due && early_now() >= self.look_due) {
        if (!rests && !early_is_little(self.configuration))
            return 0; /* what rests has left no more than when that was looked at */
        self.look_due = running() ? running()->rests_until : 0;
    }
    return early_now() < last_moment();
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

static __attribute__((noinline)) size_t tell_all(void) {
    size_t used = tell(0, "{\"pid_namespace\":%llu,\"last_heard\":%.9f,\"last_call\":%.9f,\"last_end\":%.9f,\"configured\":%.9f,\"due\":%.9f,",
                       (unsigned long long)self.pid_namespace, self.last_heard, self.last_call, self.last_end, self.configured, last_moment());
    size_t skipped = self.configuration ? self.configuration->size : 0;
    used = tell_bytes(used, "configuration", (char *)self.configuration + skipped, self.configuration_size - skipped);
    used = tell_bytes(used, "received", in + self.in_begin, self.in_end - self.in_begin);
    used = tell(used, "\"waiting\":[");
    for (unsigned i = 0; i < self.held_count; i++) {
        size_t size;
        int memory;
        const char *request = early_held(i, &size, &memory);
        used = tell(used, "%s{\"fd\":%d,", i ? "," : "", memory);
        used = tell_bytes(used, "request", request, size);
        used = tell(used - 1, "}"); /* in the place of the comma */
    }
    used = tell(used, "],\"descriptors\":[");
    for (int i = 0; i < self.descriptor_count; i++)
        used = tell(used, "%s%d", i ? "," : "", self.descriptors[i]);
    used = tell(used, "],\"disk_used\":%.0f,", self.disk_used + self.disk_coming);
    used = tell_bytes(used, "unsent", early_unsent, early_unsent_size);
    used = tell_bytes(used, "past", past.ids, self.past_count * sizeof past.ids[0]);
    used = tell(used, "\"commands\":[");
    for (const struct command *command = self.first; command; command = command->next) {
        used = tell(used, "%s{\"pid\":%d,\"mark\":%llu,\"channel\":%u,\"started\":%.9f,\"own_peak\":%lld,\"peak\":%lld,", command == self.first ? "" : ",",
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

static __attribute__((noinline)) void take_short_turns(void) {
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
static __attribute__((noinline)) int open_all(void) {
    int waiting = epoll_create1(EPOLL_CLOEXEC);
    if (waiting < 0 || dup3(waiting, AVIATO_EPOLL, O_CLOEXEC) < 0 || close(waiting) < 0)
        return -1;
    if (open_at(AVIATO_PROC, "/proc", O_RDONLY | O_DIRECTORY) < 0 || open_at(AVIATO_NULL, "/dev/null", O_RDONLY) < 0)
        return -1;
    if (dup3(STDERR_FILENO, AVIATO_LOG, O_CLOEXEC) < 0)
        return -1;
    open_at(AVIATO_TERMINALS, "/dev/pts", O_RDONLY | O_DIRECTORY); /* where there are any */
    int64_t number = early_namespace("self/ns/pid");
    self.pid_namespace = (uint64_t)number;
    return number < 0 || fcntl(LISTENER, F_SETFL, O_NONBLOCK) < 0 || listen(LISTENER, BACKLOG) < 0 ? -1 : 0;
}

/* Be the supervisor as long as that is simple. Returns the size of what Python is told, 0 where this did not begin. */
size_t aviato_early(struct aviato_early *early) {
    self.given = early;
    /* Whoever could take from this process what a later start of Python needs must not come first. */
    if (prctl(PR_GET_SECCOMP) != SECCOMP_MODE_FILTER)
        return 0;
    early->state = state;
    if (open_all() < 0)
        return 0;
    take_short_turns();
    self.last_heard = self.last_call = self.last_end = early_now();
    if (early_say_hello(self.given, self.pid_namespace))
        while (turn()) {
        }
    if (running() && !running()->announced)
        early_announce(running());
    return tell_all();
}
