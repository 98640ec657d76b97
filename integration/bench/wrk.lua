-- wrk's own figures as one line of JSON, times in microseconds. No `response` function is defined: with one, wrk would
-- run Lua for every answer.
function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "micros": %d, "p50": %d, "p99": %d, "statuses_above_399": %d, "socket_errors": %d, ' ..
      '"connect_errors": %d, "read_errors": %d, "write_errors": %d, "timeouts": %d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    summary.errors.connect, summary.errors.read, summary.errors.write, summary.errors.timeout))
end

-- With WRK_PAUSE_MS each connection rests for that long on average before it asks again, so that the load is moderate.
-- The pause is no part of the latency. It is looked for before wrk passes arguments on, hence the environment.
local pause = tonumber(os.getenv("WRK_PAUSE_MS"))
if pause then
  function delay()
    return math.random(0, 2 * pause)
  end
end

-- With WRK_AT_ONCE each connection sends so many requests before it reads their answers.
local at_once = tonumber(os.getenv("WRK_AT_ONCE"))
if at_once then
  local requests
  function init()
    requests = string.rep(wrk.format(), at_once)
  end
  function request()
    return requests
  end
end
