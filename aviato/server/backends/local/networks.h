/* Network namespaces that one sandbox after the other can have. */
#ifndef AVIATO_NETWORKS_H
#define AVIATO_NETWORKS_H

/* Be in a network namespace for the next child: one in which nobody ever was, or of which nothing tells that somebody was. Returns
 * whether that is so; if not, the child needs CLONE_NEWNET. */
int aviato_enter_network(void);

/* Be in the template's own again. The child has the other one; -1 means that there is none. */
void aviato_leave_network(long pid);

/* Let go of those that nobody has asked for in a while. Returns in how many milliseconds that is to be done again, or -1. */
int aviato_drop_networks(void);

/* In a child: hold none of the others. */
void aviato_forget_networks(void);

/* A child is dead and collected: the next one may have its network namespace, see `aviato_enter_network`. */
void aviato_network_ended(long pid);

/* The loopback of this process's network namespace, as far as it is not there yet. */
int aviato_raise_loopback(void);

#endif
