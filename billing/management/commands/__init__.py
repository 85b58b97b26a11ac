"""Commands of this room: usage in (meter, settler), money out (close_period, invoice, credit), proofs and reports."""
