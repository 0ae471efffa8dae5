"""The only client code that knows aiohttp: finding the server, speaking HTTP to it, and naming what went wrong."""
