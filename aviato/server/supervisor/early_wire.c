/* What process 1 says to its server before Python: frames, as `wire/frames.py` has them; and the descriptors that come with requests. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "early_parts.h"

enum { STDOUT = 1, ANNOUNCEMENT_BYTES = 3 * HEAD_BYTES + ID_BYTES + 32 };

char *early_unsent;
size_t early_unsent_size;

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
    ssize_t sent = 0;
    while (!early_unsent_size && (sent = sendmsg(CONNECTION, &message, MSG_NOSIGNAL | MSG_DONTWAIT)) < 0 && errno == EINTR) {
    }
    size_t done = sent > 0 ? (size_t)sent : 0, all = 0;
    for (int i = 0; i < count; i++)
        all += parts[i].iov_len;
    if (done == all)
        return 1;
    /* Not in the room, which may be full: a sandbox whose server does not read is rare. */
    if ((early_unsent = realloc(early_unsent, early_unsent_size + all - done)) == NULL)
        _exit(1);
    for (int i = 0; i < count; i++) {
        size_t skipped = done < parts[i].iov_len ? done : parts[i].iov_len;
        memcpy(early_unsent + early_unsent_size, (char *)parts[i].iov_base + skipped, parts[i].iov_len - skipped);
        early_unsent_size += parts[i].iov_len - skipped;
        done -= skipped;
    }
    return 0;
}

/* It is on record, and it has begun: two frames into `text`. */
static size_t put_announcement(char *text, struct command *command) {
    char accepted[ID_BYTES + 32];
    int size = snprintf(accepted, sizeof accepted, "{\"exec_id\":\"%s\"}", command->id);
    size_t used = put_head(text, FRAME_ACCEPTED, 0, command->channel, (size_t)size, 0);
    memcpy(text + used, accepted, (size_t)size);
    used += (size_t)size;
    used += put_head(text + used, FRAME_STARTED, 0, command->channel, 2, 0);
    memcpy(text + used, "{}", 2);
    command->announced = 1;
    return used + 2;
}

void early_announce(struct command *command) {
    char text[ANNOUNCEMENT_BYTES];
    struct iovec part = {text, put_announcement(text, command)};
    send_all(&part, 1);
}

/* Whether what there is to say of it can wait for its end. Each message wakes the server, which is dearer than all that is in it. */
static int waits(const struct command *command) {
    return !command->announced && !command->result && command->streams[0].count + command->streams[1].count < TOGETHER_BYTES &&
           early_now() < command->together_until;
}

/* What a command has printed and what was not sent of it, and with a result that too. */
int early_send_news(struct command *command) {
    char heads[3][HEAD_BYTES], announcement[ANNOUNCEMENT_BYTES];
    struct iovec parts[7];
    int count = 0;
    if (waits(command))
        return 1;
    if (!command->announced)
        parts[count++] = (struct iovec){announcement, put_announcement(announcement, command)};
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

int early_say_hello(const struct aviato_early *given, uint64_t pid_namespace) {
    char head[HEAD_BYTES], last[HEAD_BYTES], rest[128];
    int size = snprintf(rest, sizeof rest, "\"pid_namespace\":%llu,\"orphan_timeout_seconds\":%.1f,\"execs\":{}}",
                        (unsigned long long)pid_namespace, ORPHAN_SECONDS);
    put_head(head, FRAME_HELLO, 0, 0, given->hello_size + (size_t)size, 0);
    put_head(last, FRAME_DESCRIPTORS, 0, 0, 0, 0);
    struct iovec parts[] = {{head, HEAD_BYTES}, {(void *)given->hello, given->hello_size}, {rest, (size_t)size}, {last, HEAD_BYTES}};
    return send_all(parts, 4);
}

/* One short frame. Returns as `send_all`. */
int early_say(int type, unsigned channel, const char *payload, size_t size) {
    char head[HEAD_BYTES];
    put_head(head, type, 0, channel, size, 0);
    struct iovec parts[] = {{head, HEAD_BYTES}, {(void *)payload, size}};
    return send_all(parts, 2);
}

/* What there is to say of a file, its contents where they go this way, and their end. */
void early_send_file(unsigned channel, const char *description, size_t description_size, const char *content, size_t size) {
    char heads[3][HEAD_BYTES];
    put_head(heads[0], FRAME_REPLY, 0, channel, description_size, 0);
    put_head(heads[1], FRAME_DATA, 0, channel, size, 0);
    put_head(heads[2], FRAME_END, 0, channel, 0, size);
    struct iovec parts[5] = {{heads[0], HEAD_BYTES}, {(void *)description, description_size}};
    int count = 2;
    if (size) {
        parts[count++] = (struct iovec){heads[1], HEAD_BYTES};
        parts[count++] = (struct iovec){(void *)content, size};
    }
    parts[count++] = (struct iovec){heads[2], HEAD_BYTES};
    send_all(parts, count);
}

/* -- what comes in ----------------------------------------------------------------------------------------------------- */

static int is_inode(int fd, uint64_t inode) {
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_ino == inode;
}

/* Memory that came with a request, or -1. */
int early_find_descriptor(uint64_t inode) {
    for (int i = 0; i < self.descriptor_count; i++)
        if (is_inode(self.descriptors[i], inode))
            return self.descriptors[i];
    return -1;
}

/* The same, for whoever owns it from now on; those before it are of requests that did not ask for them. */
int early_take_descriptor(uint64_t inode) {
    int taken = early_find_descriptor(inode), count = 0;
    if (taken < 0)
        return -1;
    while (self.descriptors[count] != taken)
        close(self.descriptors[count++]);
    self.descriptor_count -= ++count;
    memmove(self.descriptors, self.descriptors + count, (size_t)self.descriptor_count * sizeof *self.descriptors);
    return taken;
}

/* As `recv`, with the descriptor that comes; there must be room for one. */
ssize_t early_receive(char *room, size_t room_bytes) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec part = {room, room_bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t size = recvmsg(CONNECTION, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0)
        return size;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head))
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(&self.descriptors[self.descriptor_count++], CMSG_DATA(head), sizeof(int));
    return size;
}
