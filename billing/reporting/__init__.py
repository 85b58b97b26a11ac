"""What finance reads of usage: revenue, engine time, margin, latency, savings and waste, in groups, with what moved."""
