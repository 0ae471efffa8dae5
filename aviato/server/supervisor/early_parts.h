/* What the parts of process 1 before Python share. */
#ifndef AVIATO_EARLY_PARTS_H
#define AVIATO_EARLY_PARTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "early.h"

/* Descriptors, and requests, that may wait for what belongs to them. */
enum { MOST_DESCRIPTORS = 8, MOST_HELD = 4, MOST_HELD_BYTES = 16 << 10 };
enum { CONNECTION = 3, LISTENER, NOTE, LAYER, SOCKETS, CHILDREN };
enum { ID_BYTES = 32, MOST_WORDS = 4096, HEAD_BYTES = 16 };

enum { FRAME_ACCEPTED = 1, FRAME_STARTED, FRAME_DATA, FRAME_EXIT = 5, FRAME_KEEPALIVE = 7 };
enum { FRAME_HELLO = 32, FRAME_REQUEST, FRAME_REPLY, FRAME_END, FRAME_ACK, FRAME_ENDED = 39, FRAME_DESCRIPTORS };

#define ORPHAN_SECONDS 600.0
#define WATCH_SECONDS 0.1
#define FIRST_SAMPLE_SECONDS 0.004
/* Of a command that nobody reads along its begin and what it says come with its end, if that is so soon and so little. */
#define TOGETHER_SECONDS WATCH_SECONDS
enum { TOGETHER_BYTES = 16 << 10 };

struct configuration { /* behind it: the working directory, and the environment as NAME=VALUE */
    uint32_t size;
    uint32_t environment;
    int32_t nice;
    uint32_t open_files; /* of a command; 0: as many as this process */
    double orphan_seconds, lifetime_seconds, idle_seconds; /* negative: none, as of what follows */
    double disk_bytes, inodes, memory_bytes;
};

struct request { /* behind it: the id, the working directory, the words of the command, and its environment */
    uint32_t size;
    uint32_t words;
    uint32_t environment;
    uint32_t flags;
    double timeout_seconds;
};

enum { HAS_DIRECTORY = 1, NOBODY_READS_ALONG = 2 };

struct file_request { /* behind it: its path, its key, and so many bytes of contents */
    uint32_t size;
    uint32_t content;
    int32_t mode; /* -1: it keeps the one it has */
    uint32_t unused;
    uint64_t memory; /* the inode of what came with it, or 0 */
    int64_t bytes;   /* of the file; negative: nobody knows */
};

struct frame {
    uint8_t type, stream;
    uint16_t channel;
    uint32_t length;
    const char *payload;
};

struct stream {
    int fd;
    char *bytes;
    size_t count, sent;
};

struct command {
    struct command *next; /* which began after it */
    char id[ID_BYTES];
    int pid;
    unsigned channel;
    uint64_t mark;
    double started, timeout_seconds;
    double looked, next_sample, pause; /* of its memory */
    double together_until;             /* 0: all that it says is sent at once */
    int announced;
    double rests_until;                /* where somebody has to look at all that it may do */
    int64_t own_peak, peak;
    uint64_t ran, rested;
    struct stream streams[2];
    char *spec;
    size_t spec_size;
    char *result; /* NULL: it runs */
    size_t result_size;
};

enum { ROOM_BYTES = 1 << 20, STACK_BYTES = 128 << 10, STACK_AT_REST_BYTES = 1280 };

/* What changes in a process 1 that waits lies side by side: the stack of compiled code, with what is on it then, all that it knows,
 * and what it keeps of commands. Each page that is written to, however little, is one that a sandbox holds by itself. */
struct process {
    _Alignas(AVIATO_PAGE_BYTES) char guard[AVIATO_PAGE_BYTES]; /* nobody may come so far down */
    char stack[STACK_BYTES + STACK_AT_REST_BYTES];
    char title[AVIATO_TITLE_BYTES];
    const struct aviato_early *given;
    struct configuration *configuration;
    size_t configuration_size;
    struct command *first, *last;
    int command_count;
    uint32_t past_count;
    size_t in_begin, in_end, room_used, room_base;
    double configured, last_heard, last_call, last_end, look_due, tidy_due; /* the last two: 0 is never */
    double spent_seconds;                                                   /* the processor time of commands that are over */
    uint64_t pid_namespace;
    double disk_used, disk_coming; /* by the last look, and by file calls since then */
    double written;                /* by file calls, of what is there */
    int descriptor_count, descriptors[MOST_DESCRIPTORS]; /* that came with requests */
    unsigned held_count;
    _Alignas(8) char room[ROOM_BYTES];
};

extern __attribute__((visibility("hidden"))) struct process self;

int early_has_room(void);
int early_is_past(const char *id);
void early_remember(const char *id, uint64_t mark);

/* early_wire.c: what goes out. What the socket does not take is kept for Python; then nothing more may be said. */
extern char *early_unsent;
extern size_t early_unsent_size;
int early_say_hello(const struct aviato_early *given, uint64_t pid_namespace);
int early_say(int type, unsigned channel, const char *payload, size_t size);
void early_announce(struct command *command);
int early_send_news(struct command *command);
ssize_t early_receive(char *room, size_t room_bytes);
int early_find_descriptor(uint64_t inode);
int early_take_descriptor(uint64_t inode);
void early_send_file(unsigned channel, const char *description, size_t description_size, const char *content, size_t size);

/* early_start.c: a program as a child of this process. */
int64_t early_namespace(const char *path);
char *early_strings(char *text, char *end, char **strings, uint32_t count);
int early_understand(const struct configuration *configuration, struct request *request, size_t length, char **id, char **directory);
int early_start(const struct aviato_early *given, struct command *command);
void early_forget_words(void);
void early_offer(const struct aviato_early *given, int pid);
int early_is_alone(void);

/* early_files.c: a file, whole. What is not done is left as it was. */
int early_open(const char *path, uint64_t flags);
int early_write_file(const struct frame *frame);
int early_end_of_file(const struct frame *frame);
int early_read_file(const struct frame *frame, char *room, size_t room_bytes);
const char *early_held(unsigned number, size_t *size, int *memory);
void early_forget_files(void);

/* early_watch.c: what a command takes, and what it leaves. */
int64_t early_peak(const struct command *command, int64_t most_bytes);
int early_is_unsure(const struct command *command);
void early_forget_status(void);
void early_look(struct command *command);
void early_sample(struct command *command);
double early_spent(const struct rusage *used);
int early_is_little(const struct configuration *configuration);
int early_rests(const struct configuration *configuration, struct command *command);

#endif
