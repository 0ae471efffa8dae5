"""The program that is process 1 of every sandbox, and the forms of requests that both ends know."""
