/* Files in and out, as `writing.py`, `reading.py` and `paths.py` have them; these say why each call is as it is. A file call is done here from its
 * begin to its end or not at all: whatever does not go as it usually does is undone and left to Python, which finds it as it came. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "early_parts.h"

enum { TEMPORARY_BYTES = 32, EXCHANGED_BYTES = 4 << 20, EXCHANGE = 2, NEW_MODE = 0644, KEEPS_MODE = -1, DESCRIPTION_BYTES = 512 };
/* What goes by lent memory where there is some, as in `wire/memory.py`; what is less, or has none, by the connection if it is little. */
enum { LEAST_LENT_BYTES = 128 << 10, MOST_LENT_BYTES = 4 << 20, MOST_READ_BYTES = 128 << 10 };

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
enum { NO_MAGIC_LINKS = 2 };
static const unsigned kernel_file_systems[] = {0x9FA0,     0x62656572, 0x27E0EB,   0x63677270, 0x64626720,
                                               0x74726163, 0x73636673, 0x62656570, 0x6165676C, 0xCAFE4A11};

struct upload {
    char path[PATH_MAX], temporary[TEMPORARY_BYTES];
    const char *name; /* the last part of the path */
    int folder, fd, replaced;
};

/* A request that waits for the memory that came with it to be filled. */
struct held {
    int memory;
    unsigned channel;
    uint32_t size;
    _Alignas(8) char frame[MOST_HELD_BYTES];
};
static _Alignas(AVIATO_PAGE_BYTES) struct held held[MOST_HELD];

/* What a request says: its path, its key ("" for none), and what is written behind them. NULL where it says something else. */
static const struct file_request *understand(const struct frame *frame, const char **path, const char **key, const char **content) {
    const struct file_request *request = (const struct file_request *)frame->payload;
    if (!self.configuration || frame->length < sizeof *request || request->size < sizeof *request || request->size >= frame->length ||
        request->content > request->size - sizeof *request)
        return NULL;
    char *strings[2], *text = (char *)(request + 1);
    *content = (char *)request + request->size - request->content;
    if (early_strings(text, (char *)*content, strings, 2) != *content)
        return NULL;
    *path = strings[0];
    *key = strings[1];
    return strlen(*key) < ID_BYTES ? request : NULL;
}

/* Whether the last part of a path is a name. */
static int has_name(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Counted from the sandbox's directory. Returns whether there is room for it, and for a name beside it. */
static int join(char *whole, const char *path) {
    const char *directory = *path == '/' ? "" : (const char *)(self.configuration + 1);
    size_t length = strlen(directory);
    const char *between = length && directory[length - 1] != '/' ? "/" : "";
    int size = snprintf(whole, PATH_MAX - TEMPORARY_BYTES, "%s%s%s", directory, between, path);
    return size > 0 && size < PATH_MAX - TEMPORARY_BYTES;
}

/* Follows no link that only the kernel can follow. What cannot be opened is left to Python, kernels that have no such call too. */
int early_open(const char *path, uint64_t flags) {
    uint64_t how[3] = {flags | O_CLOEXEC, 0, NO_MAGIC_LINKS};
    return (int)syscall(SYS_openat2, AT_FDCWD, path, how, sizeof how);
}

static int is_of_the_kernel(int fd) {
    struct statfs found;
    if (fstatfs(fd, &found) < 0)
        return 1;
    for (size_t i = 0; i < sizeof kernel_file_systems / sizeof *kernel_file_systems; i++)
        if ((unsigned)found.f_type == kernel_file_systems[i])
            return 1;
    return 0;
}

/* -- in ---------------------------------------------------------------------------------------------------------------- */

/* A directory in another one, which is closed; made if it is missing. */
static int make_directory(int folder, const char *name) {
    int inner = -1;
    if (mkdirat(folder, name, 0755) == 0 || errno == EEXIST)
        inner = openat(folder, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    close(folder);
    return inner;
}

/* The directory that a file is in, made with those above it if it is missing. Links to nowhere and ways back through what is
 * missing are left to Python. */
static int open_folder(char *path) {
    char *end = strrchr(path, '/'), *next = end;
    int folder;
    if (!end)
        return -1;
    for (;;) { /* the first one that is there, from the end of the path on */
        *next = 0;
        folder = early_open(next == path ? "/" : path, O_PATH | O_DIRECTORY);
        int missing = folder < 0 && errno == ENOENT && next > path;
        char *above = missing ? strrchr(path, '/') : NULL;
        *next = '/';
        if (!missing)
            break;
        if (!above || strstr(path, "/../"))
            return -1;
        next = above;
    }
    while (folder >= 0 && next < end) {
        char *name = next + 1;
        next = strchr(name, '/');
        *next = 0;
        if (*name)
            folder = make_directory(folder, name);
        *next = '/';
    }
    return folder;
}

static int begin(struct upload *upload) {
    uint64_t number;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
        return 0;
    snprintf(upload->temporary, sizeof upload->temporary, ".aviato-%016llx", (unsigned long long)number);
    upload->fd = openat(upload->folder, upload->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    return upload->fd >= 0;
}

static int write_all(int fd, const char *content, size_t size) {
    while (size) {
        ssize_t written = write(fd, content, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return 0;
        content += written;
        size -= (size_t)written;
    }
    return 1;
}

/* So much of one file to another one, whose position stays where it is in the former. Returns how much there was. */
static size_t copy(int to, int from, size_t size) {
    off_t at = 0;
    while ((size_t)at < size) {
        ssize_t count = sendfile(to, from, &at, size - (size_t)at);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            break;
    }
    return (size_t)at;
}

static int exchange(int folder, const char *new, const char *old) {
    if (syscall(SYS_renameat2, folder, new, folder, old, EXCHANGE) < 0)
        return 0;
    if (unlinkat(folder, new, 0) == 0 || errno == ENOENT)
        return 1;
    syscall(SYS_renameat2, folder, new, folder, old, EXCHANGE); /* a directory, which somebody inside has put there */
    return 0;
}

/* Returns whether the file has its place; then nothing is beside it. */
static int put_in_place(struct upload *upload, mode_t mode) {
    struct stat old;
    int folder = upload->folder;
    double was = fstatat(folder, upload->name, &old, AT_SYMLINK_NOFOLLOW) == 0 ? (double)old.st_blocks * 512 : 0;
    if (fchmod(upload->fd, mode) < 0)
        return 0;
    if (was > 0)
        upload->replaced = openat(folder, upload->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (!(was > 0 && was <= EXCHANGED_BYTES && exchange(folder, upload->temporary, upload->name)) &&
        renameat(folder, upload->temporary, folder, upload->name) < 0)
        return 0;
    self.disk_coming -= was;
    self.written -= was;
    return 1;
}

static int is_done(const char *key) { return *key && early_is_past(key); }

/* Write a file of `size` bytes, from what is given or from memory. Returns whether it was done, and answered. */
static __attribute__((noinline)) int write_file(const struct file_request *request, const char *path, const char *key, unsigned channel,
                                                const char *content, int memory) {
    struct upload upload = {.folder = -1, .fd = -1, .replaced = -1};
    struct stat found;
    int done = 0;
    double size = (double)request->bytes, limit = self.configuration->disk_bytes;
    mode_t mode = request->mode == KEEPS_MODE ? NEW_MODE : (mode_t)request->mode;
    if (request->bytes < 0 || is_done(key) || !early_has_room() || (limit >= 0 && self.disk_used + self.disk_coming + size > limit) ||
        !join(upload.path, path) || !has_name(upload.path) || (upload.folder = open_folder(upload.path)) < 0)
        return 0;
    upload.name = strrchr(upload.path, '/') + 1;
    if (is_of_the_kernel(upload.folder))
        goto end;
    if (fstatat(upload.folder, upload.name, &found, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!S_ISREG(found.st_mode))
            goto end;
        if (request->mode == KEEPS_MODE)
            mode = found.st_mode & 07777;
    } else if (errno != ENOENT)
        goto end;
    if (!begin(&upload))
        goto end;
    done = (memory < 0 ? write_all(upload.fd, content, (size_t)request->bytes)
                       : copy(upload.fd, memory, (size_t)request->bytes) == (size_t)request->bytes) &&
           put_in_place(&upload, mode);
    if (done) {
        self.disk_coming += size;
        self.written += size;
        self.last_call = early_now();
        if (!self.look_due)
            self.look_due = self.last_call + WATCH_SECONDS;
        if (*key)
            early_remember(key, 0);
        early_say(FRAME_REPLY, channel, "{}", 2); /* what is not sent of it is seen by whoever called */
    } else
        unlinkat(upload.folder, upload.temporary, 0);
    close(upload.fd);
end:
    close(upload.folder);
    if (upload.replaced >= 0)
        close(upload.replaced); /* may take a moment, which nobody waits for now */
    return done;
}

/* A request that brings its contents along, or says that they will be in memory. */
int early_write_file(const struct frame *frame) {
    const char *path, *key, *content;
    const struct file_request *request = understand(frame, &path, &key, &content);
    if (!request)
        return 0;
    if (!request->memory)
        return request->content == request->bytes && write_file(request, path, key, frame->channel, content, -1);
    if (request->content || request->bytes < 0 || self.held_count == MOST_HELD || HEAD_BYTES + frame->length > MOST_HELD_BYTES)
        return 0;
    int memory = early_take_descriptor(request->memory);
    if (memory < 0)
        return 0;
    struct held *one = &held[self.held_count++];
    one->memory = memory;
    one->channel = frame->channel;
    one->size = HEAD_BYTES + frame->length;
    memcpy(one->frame, frame->payload - HEAD_BYTES, one->size);
    return 1;
}

/* The memory of a request is filled. */
int early_end_of_file(const struct frame *frame) {
    unsigned number = 0;
    const char *path, *key, *content;
    while (number < self.held_count && held[number].channel != frame->channel)
        number++;
    if (number == self.held_count)
        return 0;
    struct held *one = &held[number];
    struct frame asked = {.channel = one->channel, .length = one->size - HEAD_BYTES, .payload = one->frame + HEAD_BYTES};
    const struct file_request *request = understand(&asked, &path, &key, &content);
    if (!request || !write_file(request, path, key, one->channel, NULL, one->memory))
        return 0;
    close(one->memory);
    self.held_count--;
    memmove(one, one + 1, (self.held_count - number) * sizeof *one);
    return 1;
}

/* One that waits, for Python: its frame, and the memory that came with it. */
const char *early_held(unsigned number, size_t *size, int *memory) {
    *size = held[number].size;
    *memory = held[number].memory;
    return held[number].frame;
}

void early_forget_files(void) {
    if (!self.held_count)
        aviato_give_back(held, sizeof held);
}

/* -- out --------------------------------------------------------------------------------------------------------------- */

static int open_regular(const char *path, struct stat *found) {
    char again[32];
    int handle = early_open(path, O_PATH), fd = -1;
    if (handle < 0)
        return -1;
    if (fstat(handle, found) == 0 && S_ISREG(found->st_mode) && !is_of_the_kernel(handle)) {
        snprintf(again, sizeof again, "self/fd/%d", handle);
        fd = openat(AVIATO_PROC, again, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    }
    close(handle);
    return fd;
}

/* Whether JSON has it as it is. */
static int is_plain(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == '"' || *text == '\\' || *text == 127)
            return 0;
    return 1;
}

/* As `describe` and `version_of` have it. Returns its size, 0 where there is no room or a number that they write otherwise. */
static size_t describe(char *text, size_t room, const char *path, const struct stat *found, int64_t lent) {
    const struct timespec *changed = &found->st_mtim, *touched = &found->st_ctim;
    char memory[48] = "";
    if (changed->tv_sec < 0 || touched->tv_sec < 0)
        return 0;
    if (lent >= 0)
        snprintf(memory, sizeof memory, ",\"memory_bytes\":%lld", (long long)lent);
    int size = snprintf(text, room,
                        "{\"path\":\"%s\",\"size_bytes\":%lld,\"mode\":%u,\"mtime\":%.17g,\"type\":\"file\",\"link_target\":null,"
                        "\"version\":\"%llx.%llx.%llx.%llx.%llx\"%s}",
                        path, (long long)found->st_size, found->st_mode & 07777, (double)changed->tv_sec + 1e-9 * (double)changed->tv_nsec,
                        (unsigned long long)found->st_dev, (unsigned long long)found->st_ino, (unsigned long long)found->st_size,
                        (unsigned long long)changed->tv_sec * 1000000000u + (unsigned long long)changed->tv_nsec,
                        (unsigned long long)touched->tv_sec * 1000000000u + (unsigned long long)touched->tv_nsec, memory);
    return size > 0 && (size_t)size < room ? (size_t)size : 0;
}

/* All that is left of a file, into so much room. Returns its size, or -1 where it is more, or cannot be read. */
static ssize_t read_all(int fd, char *content, size_t room) {
    size_t size = 0;
    for (;;) {
        ssize_t count = read(fd, content + size, room - size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 || size + (size_t)count == room)
            return -1;
        if (count == 0)
            return (ssize_t)size;
        size += (size_t)count;
    }
}

/* Into memory. Returns its size, or -1 where that does not take it. */
static ssize_t fill(int memory, int fd) {
    if (lseek(memory, 0, SEEK_SET) != 0)
        return -1;
    size_t size = copy(memory, fd, MOST_LENT_BYTES);
    char more;
    ssize_t rest = pread(fd, &more, 1, (off_t)size); /* what the memory did not take is not the end of the file */
    return rest == 0 ? (ssize_t)size : -1;
}

/* Returns whether it was sent; else nothing was said of it. */
int early_read_file(const struct frame *frame, char *room, size_t room_bytes) {
    char whole[PATH_MAX], description[PATH_MAX + DESCRIPTION_BYTES];
    const char *path, *key, *content;
    const struct file_request *request = understand(frame, &path, &key, &content);
    struct stat found;
    if (!request || request->content || !join(whole, path) || !is_plain(whole))
        return 0;
    int fd = open_regular(whole, &found), memory = -1;
    if (fd < 0)
        return 0;
    int lent = request->memory && found.st_size >= LEAST_LENT_BYTES && found.st_size <= MOST_LENT_BYTES;
    ssize_t size = -1;
    if (lent)
        size = (memory = early_find_descriptor(request->memory)) < 0 ? -1 : fill(memory, fd);
    else if (found.st_size <= MOST_READ_BYTES)
        size = read_all(fd, room, room_bytes < MOST_READ_BYTES + 1 ? room_bytes : MOST_READ_BYTES + 1);
    close(fd);
    size_t said = size < 0 ? 0 : describe(description, sizeof description, whole, &found, lent ? size : -1);
    if (!said)
        return 0;
    if (request->memory && (memory = early_take_descriptor(request->memory)) >= 0)
        close(memory);
    self.last_call = early_now();
    early_send_file(frame->channel, description, said, room, lent ? 0 : (size_t)size);
    return 1;
}
