"""The program that is process 1 of every sandbox, and the server's end of its protocol."""
