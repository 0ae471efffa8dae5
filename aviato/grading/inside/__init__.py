"""Programs that are sent into sandboxes: standard library only, Python 3.8 or newer; nothing of aviato is imported there."""
