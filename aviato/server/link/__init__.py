"""The server's end of the protocol of process 1: connections, what is asked of it over them, and what comes back."""
