/* Starting a program, as `spawn.py` and `commands.py` do it; these say why. What is not found or cannot be started is left to them. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "early_parts.h"

enum { RESERVED_DESCRIPTORS = 32 };

enum { WORDS = MOST_WORDS + AVIATO_PAGE_BYTES / sizeof(char *) }; /* with one for NULL: whole pages, which can be given back */

static _Alignas(AVIATO_PAGE_BYTES) char *words[WORDS], *variables[WORDS], *added[WORDS];

/* The number of a namespace, or -1. */
int64_t early_namespace(const char *path) {
    char text[64];
    ssize_t size = readlinkat(AVIATO_PROC, path, text, sizeof text - 1);
    if (size <= 0)
        return -1;
    text[size] = 0;
    const char *digit = strchr(text, '[');
    if (!digit)
        return -1;
    int64_t number = 0; /* by hand: the C library looks into five pages for its locale */
    while (*++digit >= '0' && *digit <= '9')
        number = number * 10 + (*digit - '0');
    return number;
}

/* Strings one behind the other into an array; returns where they end, or NULL where they are not whole. */
char *early_strings(char *text, char *end, char **strings, uint32_t count) {
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

/* Signals that are not what a program expects of them, by their numbers; nothing here changes that. */
static uint64_t unusual_signals;

void aviato_learn_signals(void) {
    for (int number = 1; number <= 64; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_DFL)
            unusual_signals |= 1ULL << (number - 1);
    }
}

/* To so many, or to what this process may have, if that is less: so where the machine gives little. */
static int lower_open_files(uint32_t wanted) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return 0;
    if (limit.rlim_max > wanted)
        limit.rlim_max = wanted;
    limit.rlim_cur = limit.rlim_max;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/* In the child, which has this process's memory until it is the program: what it is written to is lost to nobody else's. */
static void become_program(const char *program, const int *theirs) {
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigset_t none;
    if (self.configuration->open_files && !lower_open_files(self.configuration->open_files))
        return;
    for (int number = 1; number <= 64; number++)
        if (unusual_signals >> (number - 1) & 1)
            sigaction(number, &usual, NULL);
    sigemptyset(&none);
    if (setsid() >= 0 && dup2(AVIATO_NULL, STDIN_FILENO) >= 0 && dup2(theirs[0], STDOUT_FILENO) >= 0 &&
        dup2(theirs[1], STDERR_FILENO) >= 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0)
        execve(program, words, variables);
}

/* With these as its output; its input is nothing. As `posix_spawn` does it, which needs a stack of its own each time, asks for every
   signal, and writes to a page that nothing else here writes to. */
static pid_t start_program(const char *program, const int *theirs) {
    sigset_t all, before;
    volatile int is_program = 1;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pid_t pid = vfork();
    if (pid == 0) {
        become_program(program, theirs);
        is_program = 0;
        _exit(127);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid > 0 && !is_program) {
        waitpid(pid, NULL, 0);
        return -1;
    }
    return pid;
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
        int theirs[] = {pipes[0][1], pipes[1][1]};
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

void early_offer(const struct aviato_early *given, int pid) {
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

/* All that is asked for, from the request: words, variables, id and directory. Returns whether it can be had here. */
int early_understand(const struct configuration *configuration, struct request *request, size_t length, char **id, char **directory) {
    if (length < sizeof *request || request->size < sizeof *request || request->size >= length ||
        request->words < 1 || request->words > MOST_WORDS || request->environment > MOST_WORDS ||
        configuration->environment > MOST_WORDS - request->environment)
        return 0;
    char *text = (char *)(request + 1), *end = (char *)request + request->size;
    if (!(text = early_strings(text, end, id, 1)) || !(text = early_strings(text, end, directory, 1)) ||
        !(text = early_strings(text, end, words, request->words)) || !early_strings(text, end, added, request->environment))
        return 0;
    words[request->words] = NULL;
    /* In the order of Python's: the sandbox's own, each with the value that this command has for it, then the others. */
    uint32_t count = configuration->environment;
    text = (char *)(configuration + 1) + strlen((char *)(configuration + 1)) + 1;
    if (!early_strings(text, (char *)configuration + configuration->size, variables, count))
        return 0;
    for (uint32_t i = 0; i < request->environment; i++) {
        uint32_t own = 0;
        while (own < configuration->environment && !is_same_name(variables[own], added[i]))
            own++;
        variables[own < configuration->environment ? own : count++] = added[i];
    }
    variables[count] = NULL;
    return strlen(*id) < ID_BYTES && !strpbrk(*id, "\"\\");
}

/* Returns whether nobody else lives in here. Whoever does descends from process 1, and an orphan becomes its child. Asked so, since
   the kernel looks through every process of the machine for kill(-1, 0). */
int early_is_alone(void) {
    siginfo_t nobody;
    return waitid(P_ALL, 0, &nobody, WEXITED | WNOHANG | WNOWAIT | __WALL) < 0 && errno == ECHILD;
}

/* Nobody asks for them any more. */
void early_forget_words(void) {
    aviato_give_back(words, sizeof words);
    aviato_give_back(variables, sizeof variables);
    aviato_give_back(added, sizeof added);
}

/* Start what was understood, in the current directory and with a mark of its own. Returns its process, or -1. */
int early_start(const struct aviato_early *given, struct command *command) {
    char found[PATH_MAX];
    const char *path = value_of(variables, "PATH"), *program = find_program(words[0], path ? path : given->path, found, sizeof found);
    int64_t mark = program && unshare(CLONE_NEWUTS) == 0 ? early_namespace("thread-self/ns/uts") : -1;
    command->mark = (uint64_t)mark;
    return mark < 0 ? -1 : connect_and_start(program, command);
}
