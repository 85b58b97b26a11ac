"""Sign-in to the console: password, second factor, lock-out, session limits, by django-allauth and django-axes.

Invariant: every session that opens a page of the console came through here; programs sign in with keys instead.
"""
