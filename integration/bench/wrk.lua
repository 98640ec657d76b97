-- wrk's own figures as one line of JSON, times in microseconds. Only `done` is defined: a `response` function would
-- make wrk run Lua for every answer.
function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "micros": %d, "p50": %d, "p99": %d, "statuses_above_399": %d, "socket_errors": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
