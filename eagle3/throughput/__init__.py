"""`eagle3 throughput`: a served draft under load, and the settings that are right for each load."""
