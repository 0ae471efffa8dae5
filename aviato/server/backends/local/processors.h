/* Control groups by which sandboxes share out the processors, one for each. */
#ifndef AVIATO_PROCESSORS_H
#define AVIATO_PROCESSORS_H

/* From now on; `unified`: they are of version 2. Those that templates left which are gone are taken away. */
void aviato_share_processors(const char *directory, int unified);

/* Be in a group for the next child, or where they are of version 2 give a descriptor for its birth; else -1. */
int aviato_enter_group(void);

/* Be where the template belongs again. The child has the group; -1 means that there is none. */
void aviato_leave_group(long pid);

/* In a child: hold nothing of them. */
void aviato_forget_groups(void);

/* A child is dead and collected, with all that was inside: the next one may have its group. */
void aviato_group_ended(long pid);

/* Let go of those that nobody has had for a while. Returns in how many milliseconds that is to be done again, or -1. */
int aviato_drop_groups(void);

/* The template ends: the groups in which nobody lives go. */
void aviato_remove_groups(void);

#endif
