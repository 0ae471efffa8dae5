/* What the kernel alone takes for sandboxes of the local backend: no Python, no server, no supervisor.
 *
 * `kernel PLANS MODE COMMAND…`: requests of PLANS (see plans.py) are served by the functions that a template serves them with: the
 * same place, clone, ids and system calls. What is process 1 then starts the command, waits for it and tells its status. Each line
 * of input asks for one measurement, answered by its seconds, its processor time, and the machine's user and system time meanwhile:
 *
 *     once     one sandbox, until its command has ended; that it is ended and removed then is in the processor time alone
 *     ahead    the same, its clone made before: a template has one at hand where nobody hurries
 *     stay     one more sandbox, which stays until the end of input
 *     stay512  the same, and its process 1 has written to so many new pages before it tells
 *     again    one more command in a sandbox that stays, asked for over a third process that stands where a server does
 *     256x4    so many, so many at once, each ended and removed
 */

#include "template.c"

#include <ftw.h>
#include <sched.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>

enum { INSIDE = 3, CALL = 72, ROOM = 1 << 18, DEEPEST = 16 }; /* the connection in process 1; a call without its text */

extern char **environ;

struct sandbox {
    long pid;
    int connection;
    const char *place;
};

static const char *plans, *plans_end;
static char **command, title[32];
static int pages; /* that each process 1 writes to */
static struct template template = {.control = -1, .room = ROOM, .birth = {.name = "floor"}};

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "%s: %s\n", what, detail);
    _exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Whether it failed. */
static char run_command(void) {
    pid_t child;
    int status;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, INSIDE, STDOUT_FILENO);
    int started = posix_spawn(&child, command[0], &actions, NULL, command, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    return !started || waitpid(child, &status, 0) != child || status != 0;
}

/* Process 1: what its command prints goes to whoever waits, then a zero and whether it failed, or in place of all why there is none. */
static void live(void) {
    char told[1024] = {0, 1}, asked;
    size_t size = 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* whoever breaks off leaves nobody behind */
    if (template.birth.error) {
        const char *step = template.birth.program + template.birth.label + CALL;
        snprintf(told, sizeof told - 2, "%s: %s", step, strerror(template.birth.error));
        size = strlen(told) + 2;
        told[size - 1] = 1;
    } else {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        char *held = mmap(NULL, (size_t)(pages + 1) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; at < (size_t)pages * page && held != MAP_FAILED; at += page)
            held[at] = 1;
        told[1] = run_command();
    }
    if (write(template.birth.error ? template.connection : INSIDE, told, size) < 0)
        _exit(1);
    while (read(INSIDE, &asked, 1) == 1) {
        told[1] = run_command();
        if (write(INSIDE, told, 2) < 0)
            _exit(1);
    }
    for (;;)
        pause();
}

/* The clone that a template has at hand. */
static void prepare(void) {
    long pid = prepare_spare(&template);
    if (pid == 0)
        live();
    if (pid < 0)
        fail("clone", strerror(errno));
}

static struct sandbox begin(const char *plan) {
    struct sandbox made;
    struct making making = {.kept_count = 0, .what = "", .where = ""};
    int pair[2], pidfd;
    template.size = *(const uint64_t *)plan;
    memcpy(template.buffer, plan + sizeof(uint64_t), template.size);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        fail("socketpair", strerror(errno));
    template.fds[0] = keep(&making, pair[1]);
    template.fd_count = 1;
    if (!is_ours(&template))
        fail("a plan", "is none that compiled code takes");
    const struct request *request = (const struct request *)template.buffer;
    made.pid = make_sandbox(&template, &making, request, &pidfd);
    if (made.pid == 0)
        live();
    if (made.pid < 0 || chdir("/") < 0)
        fail(making.what, strerror(errno));
    while (making.kept_count)
        close(making.kept[--making.kept_count]);
    made.connection = pair[0];
    made.place = plan + sizeof(uint64_t) + sizeof *request + request->trees * sizeof(struct tree);
    return made;
}

static void await_result(const struct sandbox *sandbox) {
    char told[1 << 16];
    size_t size = 0;
    for (ssize_t more; size < 2 || told[size - 2] != 0; size += (size_t)more)
        if ((more = read(sandbox->connection, told + size, sizeof told - size)) <= 0)
            fail(sandbox->place, "its process 1 ended");
    if (told[size - 1])
        fail("a sandbox, or its command, failed", told);
}

static int remove_one(const char *path, const struct stat *found, int kind, struct FTW *where) {
    (void)found, (void)where;
    return kind == FTW_DP || kind == FTW_DNR ? rmdir(path) : unlink(path);
}

static void end(const struct sandbox *sandbox) {
    close(sandbox->connection);
    if (kill((pid_t)sandbox->pid, SIGKILL) < 0 || waitpid((pid_t)sandbox->pid, NULL, 0) < 0)
        fail("end", strerror(errno));
    aviato_network_ended(sandbox->pid); /* as a template that collects it */
    if (nftw(sandbox->place, remove_one, DEEPEST, FTW_DEPTH | FTW_PHYS) < 0)
        fail(sandbox->place, strerror(errno));
}

/* Between us and a sandbox that stays: its connection is the relay's then, and ours is to that. */
static void relay(struct sandbox *sandbox) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        fail("socketpair", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        fail("fork", strerror(errno));
    if (pid == 0) {
        close(pair[0]);
        for (char asked, answer[2] = {0, 0}; read(pair[1], &asked, 1) == 1;) {
            if (write(sandbox->connection, &asked, 1) != 1)
                fail("relay", strerror(errno));
            await_result(sandbox);
            if (write(pair[1], answer, sizeof answer) < 0)
                fail("relay", strerror(errno));
        }
        _exit(0);
    }
    close(pair[1]);
    close(sandbox->connection);
    sandbox->connection = pair[0];
}

static void one(const char *plan) {
    struct sandbox sandbox = begin(plan);
    await_result(&sandbox);
    end(&sandbox);
}

static const char *plan_after(const char *plan) {
    const char *next = plan + sizeof(uint64_t) + *(const uint64_t *)plan;
    return next < plans_end ? next : NULL;
}

/* Workers take one after the other, as threads do that run programs. */
static void many(int count, int at_once) {
    int *left = mmap(NULL, sizeof *left, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (left == MAP_FAILED)
        fail("mmap", strerror(errno));
    *left = count;
    const char *plan = plans;
    for (int worker = 0; worker < at_once && plan; worker++, plan = plan_after(plan)) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork", strerror(errno));
        while (pid == 0 && __atomic_fetch_sub(left, 1, __ATOMIC_RELAXED) > 0)
            one(plan);
        if (pid == 0)
            _exit(0);
    }
    for (int status; waitpid(-1, &status, 0) > 0;)
        if (status)
            fail("a worker", "failed");
    munmap(left, sizeof *left);
}

/* Exact, and only together: a process that no tick of the clock has met counts as user time altogether. */
static double processor_seconds(void) {
    double seconds = 0;
    for (int who = RUSAGE_CHILDREN; who <= RUSAGE_SELF; who++) {
        struct rusage usage;
        getrusage(who, &usage);
        seconds += (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);
        seconds += (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    }
    return seconds;
}

/* By ticks, of the whole machine: what the kernel does for nobody is in it, and what others do. */
static void machine_seconds(double *user, double *system) {
    unsigned long ticks[7];
    FILE *file = fopen("/proc/stat", "r");
    if (!file || fscanf(file, "cpu %lu %lu %lu %lu %lu %lu %lu", ticks, ticks + 1, ticks + 2, ticks + 3, ticks + 4, ticks + 5, ticks + 6) != 7)
        fail("/proc/stat", "cannot be read");
    fclose(file);
    *user = (double)(ticks[0] + ticks[1]) / (double)sysconf(_SC_CLK_TCK);
    *system = (double)(ticks[2] + ticks[5] + ticks[6]) / (double)sysconf(_SC_CLK_TCK);
}

int main(int count, char **arguments) {
    struct stat found;
    int file = count > 3 ? open(arguments[1], O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0 || fstat(file, &found) < 0)
        fail("usage", "kernel PLANS once|ahead|stay|again|COUNTxAT_ONCE COMMAND...");
    plans = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    template.buffer = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (plans == MAP_FAILED || template.buffer == MAP_FAILED || (template.children = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
        fail(arguments[1], strerror(errno));
    plans_end = plans + found.st_size;
    command = arguments + 3;
    template.birth.title = title;
    template.birth.title_size = sizeof title;
    template.namespaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET | CLONE_NEWCGROUP;

    const char *mode = arguments[2], *plan = plans;
    int items = 0, at_once = 0, stays = strncmp(mode, "stay", 4) == 0, ahead = strcmp(mode, "ahead") == 0;
    int again = strcmp(mode, "again") == 0;
    sscanf(mode, "stay%d", &pages);
    sscanf(mode, "%dx%d", &items, &at_once);
    struct sandbox *staying = NULL, asked = {0};
    size_t lives = 0;
    if (again) {
        for (const char *next = plan; next; next = plan_after(next))
            plan = next; /* the last: others that stay beside it have the first */
        asked = begin(plan);
        await_result(&asked);
        relay(&asked);
    }
    for (char line[256]; fgets(line, sizeof line, stdin);) {
        double user, system, user_before, system_before, spent = processor_seconds();
        machine_seconds(&user_before, &system_before);
        if (ahead)
            prepare();
        double began = now(), seconds;
        if (items) {
            many(items, at_once);
            seconds = now() - began;
        } else if (again) {
            if (write(asked.connection, "", 1) != 1)
                fail("the relay", strerror(errno));
            await_result(&asked);
            seconds = now() - began;
        } else if (plan) {
            struct sandbox sandbox = begin(plan);
            await_result(&sandbox);
            seconds = now() - began;
            if (!stays)
                end(&sandbox);
            else if ((staying = realloc(staying, (lives + 1) * sizeof sandbox))) {
                staying[lives++] = sandbox;
                plan = plan_after(plan);
            }
        } else {
            fail(arguments[1], "has no more plans");
        }
        machine_seconds(&user, &system);
        printf("%.9f %.6f %.2f %.2f\n", seconds, processor_seconds() - spent, user - user_before, system - system_before);
        fflush(stdout);
    }
    while (lives)
        end(&staying[--lives]);
    if (again)
        end(&asked);
    return 0;
}
