/* The template's memory as a file that all of its children map.
 *
 * What a process has written itself is copied into each of its clones as an entry of a page table a page, and taken out of it when
 * that ends: for the two thousand pages of a warm interpreter half a millisecond, of which a sandbox that needs no Python uses
 * nothing. What is mapped privately from a file and was not written to since is left out of the clone and found again on demand,
 * many pages at a time. So what the template has written until it first waits for a request becomes such a mapping, of a file in
 * memory with the same bytes that nobody can change any more. The few pages that it writes to later are copied as before. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "birth.h"
#include "shared.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

enum { MOST_AREAS = 512, LINE_BYTES = 1024 };
/* Between the areas of the file: one that the C library makes longer where it is goes on into zeros, as any does. */
#define APART (1ULL << 36)

struct area {
    uint64_t begin, end;
    int protection;
};

struct lines {
    int fd;
    size_t begin, end;
    char room[LINE_BYTES * 4];
};

/* The next line, without its end; NULL where there is none. No stdio: its buffer would be part of what is copied. */
static char *next_line(struct lines *lines) {
    for (;;) {
        char *line = lines->room + lines->begin, *newline = memchr(line, '\n', lines->end - lines->begin);
        if (newline) {
            *newline = 0;
            lines->begin = (size_t)(newline + 1 - lines->room);
            return line;
        }
        memmove(lines->room, line, lines->end - lines->begin);
        lines->end -= lines->begin;
        lines->begin = 0;
        ssize_t more = read(lines->fd, lines->room + lines->end, sizeof lines->room - lines->end);
        if (more <= 0)
            return NULL;
        lines->end += (size_t)more;
    }
}

/* Whether a mapping has no property but these: one that is wiped in a clone, dropped, locked or kept from clones stays what it is.
 * The C library's random numbers (glibc 2.41, Linux 6.11) come from such a page: as another one all children would draw the same. */
static int is_plain(char *flags) {
    static const char known[] = " rd wr mr mw me ac nr sd ";
    for (char *rest, *flag = strtok_r(flags, " ", &rest), word[8]; flag; flag = strtok_r(NULL, " ", &rest))
        if (strlen(flag) != 2 || snprintf(word, sizeof word, " %s ", flag) < 0 || !strstr(known, word))
            return 0;
    return 1;
}

/* What has been written of private memory, as far as most of it has: the rest is not worth being filled in. */
static int find_areas(struct area *areas) {
    struct lines lines = {.fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC)};
    struct area area = {0};
    int count = 0, fits = 0, written = 0;
    for (char *line; lines.fd >= 0 && (line = next_line(&lines));) {
        unsigned long begin, end, kilobytes;
        char access[5];
        int name = 0;
        if (sscanf(line, "%lx-%lx %4s %*s %*s %*s %n", &begin, &end, access, &name) == 3) {
            area = (struct area){begin, end, PROT_READ | (access[1] == 'w' ? PROT_WRITE : 0)};
            fits = access[0] == 'r' && access[2] == '-' && access[3] == 'p' && (line[name] != '[' || strcmp(line + name, "[heap]") == 0);
            written = 0;
        } else if (sscanf(line, "Anonymous: %lu", &kilobytes) == 1) {
            written = kilobytes << 11 >= area.end - area.begin;
        } else if (fits && written && strncmp(line, "VmFlags:", 8) == 0 && is_plain(line + 8) && count < MOST_AREAS) {
            areas[count++] = area;
        }
    }
    if (lines.fd >= 0)
        close(lines.fd);
    return count;
}

static int copy(int fd, const struct area *area, uint64_t at) {
    for (uint64_t done = 0, size = area->end - area->begin; done < size;) {
        ssize_t written = pwrite(fd, (char *)area->begin + done, size - done, (off_t)(at + done));
        if (written <= 0)
            return -1;
        done += (uint64_t)written;
    }
    return 0;
}

/* Nothing may be written to an area from its copy to its change: all that is written here is on the stack. The mapping is made
 * beside it first, since what is mapped over something takes that away even where it fails. */
static void share(int fd, const struct area *area, uint64_t at) {
    uint64_t size = area->end - area->begin;
    void *made = mmap(NULL, size, area->protection, MAP_PRIVATE, fd, (off_t)at);
    if (made == MAP_FAILED)
        return;
    if (copy(fd, area, at) < 0 || mremap(made, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)area->begin) == MAP_FAILED)
        munmap(made, size);
}

EXPORTED void aviato_share_memory(void) {
    struct area areas[MOST_AREAS];
    int count = find_areas(areas), flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = memfd_create("aviato-template", flags | MFD_NOEXEC_SEAL); /* some machines have no others, older ones not these */
    if (fd < 0 && (fd = memfd_create("aviato-template", flags)) < 0)
        return;
    if (ftruncate(fd, (off_t)(count * APART)) == 0)
        for (int i = 0; i < count; i++)
            share(fd, &areas[i], i * APART);
    fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
    close(fd);
}
