"""What a request costs: pure arithmetic on whole nano-units. No Django, no I/O, no clock."""
