"""Commands of the billing room: credit, meter, settler, usage_report."""
