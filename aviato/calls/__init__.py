"""What the calls of both clients ask for and give: arguments checked once, requests, results and errors."""
