"""Steps 1-5 and 7: the edge, admission and streams. No engine, no ORM."""
