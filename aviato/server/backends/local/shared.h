/* The template's memory as a file that all of its children map. */
#ifndef AVIATO_SHARED_H
#define AVIATO_SHARED_H

/* From here on what this process has written so far lies in a file in memory, of which it has a private mapping. Where that cannot
 * be had all stays as it is. */
void aviato_share_memory(void);

#endif
