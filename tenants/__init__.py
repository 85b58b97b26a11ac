"""Steps 2 and 3 of a request: who asks (auth) and how much they may (limits); and the organisation behind both."""
