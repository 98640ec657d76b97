//! Decides the requests of a log by rules, on the log's own clock, and sums up what they would have done.
