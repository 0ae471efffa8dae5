/* Writable layers that one sandbox after the other can have. */
#ifndef AVIATO_LAYERS_H
#define AVIATO_LAYERS_H

#include <stdint.h>

/* A sandbox has begun, in whose place this process is, and will send its root by `sock`, which is taken: until the sandbox is buried,
 * or `aviato_drop_layers` finds that it was not. */
void aviato_await_layers(uint32_t number, long pid, uint32_t uid, uint32_t gid, int sock);

/* A child is dead and collected. */
void aviato_layers_ended(long pid);

/* In the place of a sandbox that is dead: whether another one may have its layers, since nobody can tell them from new ones. If not,
 * `rest` is what holds them, or -1: the end of a mount can take its time, and is for somebody else. */
int aviato_bury_layers(uint32_t number, int *rest);

/* The root of one that was buried so, as a detached mount, which the caller owns; -1 where there is none. */
int aviato_take_layers(uint32_t number);

/* Whether a root is as good as a new one: of one that is `volatile` the kernel remembers for good that a write to its disk failed. */
int aviato_is_sound(int mount);

/* Let go of those that nobody has asked for in a while. Returns in how many milliseconds that is to be done again, or -1. */
int aviato_drop_layers(void);

/* In a child: hold none of the others. */
void aviato_forget_layers(void);

#endif
