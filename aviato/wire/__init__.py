"""What crosses the connection between client and server. Both sides import it; it imports neither."""
