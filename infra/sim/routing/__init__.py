"""Several engines and the question which of them takes a request: the same arrivals under each routing policy."""
