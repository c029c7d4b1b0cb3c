"""Speed, measured as ratios within one run on interleaved repeats."""
