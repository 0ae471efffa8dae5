"""HTTP: who is let in, how many, and the operations as routes of aiohttp."""
