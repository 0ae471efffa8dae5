/* What process 1 before Python is given, and gives back. As in `takeover.py`. */
#ifndef AVIATO_EARLY_H
#define AVIATO_EARLY_H

#include <stddef.h>
#include <stdint.h>

/* Descriptors beyond all that a supervisor is given. */
enum { AVIATO_PROC = 32, AVIATO_NULL, AVIATO_TERMINALS, AVIATO_EPOLL, AVIATO_LOG };

struct aviato_early {
    const char *hello; /* the begin of HELLO's payload, or NULL: Python is wanted from the start */
    uint64_t hello_size;
    const char *badness; /* of commands, for the kernel's choice of whom to kill */
    uint64_t badness_size;
    const char *path; /* where programs are looked for if no environment says it */
    const char *state; /* out: JSON */
    uint64_t state_size;
    void *used_up; /* memory of the template's that nobody needs in here */
    uint64_t used_up_size;
};

size_t aviato_early(struct aviato_early *early);

void aviato_learn_signals(void); /* once, before the first child */

double early_now(void); /* seconds, of the monotonic clock */

enum { AVIATO_TITLE_BYTES = 24 };

/* Where compiled code runs, and where what others see of its command line lies: on the pages that it writes to in any case. */
void *aviato_stack(size_t *size);
char *aviato_title(void);

enum { AVIATO_PAGE_BYTES = 4096 }; /* the least that there is; where pages are larger, fewer are given back */

/* Whole pages in which nothing lies any more: what a sandbox holds that waits, it holds for long. */
void aviato_give_back(void *begin, size_t size);

#endif
