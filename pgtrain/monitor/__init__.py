"""What a run shows and keeps: the metrics' legend, the monitor and its sinks, the run folder's records."""
