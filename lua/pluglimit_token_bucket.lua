-- PlugLimit's token bucket: LIMIT requests in a window of WINDOW seconds, BURST of them at once.
--
--   redis-cli --eval lua/pluglimit_token_bucket.lua KEY , LIMIT WINDOW BURST
--
-- In limits.yaml:
--   algorithm: script
--   file: lua/pluglimit_token_bucket.lua
--   args: [15, 60, 3]
--   headers: [x-ratelimit-limit, x-ratelimit-reset, x-ratelimit-remaining, retry-after]
--
-- The first request begins a window. The bucket starts with BURST tokens and never has more. LIMIT - BURST tokens come back
-- evenly during the window. When it ends, everything starts over.
--
-- Reply: { 'allow' or 'deny', { "LIMIT LIMIT;w=WINDOW;burst=BURST;policy=token_bucket", seconds until the window ends,
-- LIMIT less the tokens used in the window, seconds until the next token } }, all as text. The last value is there only if no
-- token is left, also in the reply to the request that took the last one.
--
-- A bucket is a hash: `used`, the tokens used in this window, and `parts`, those that have not come back at `at`, in parts of
-- a token. One token is WINDOW million parts, and LIMIT - BURST parts come back per microsecond, so all numbers are integers.
-- The key expires with the window. Unlike in the original, an idle bucket holds at most BURST tokens, the wait counts the part
-- of a token that is there and is never "inf", seconds are rounded up and never 0, a denied request writes nothing, and a
-- server that cannot write is an error, where the original lets the request pass.

local key, limit, window, burst = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local function whole(number)
  return number and number >= 1 and number % 1 == 0
end
if not key or not whole(limit) or not whole(window) or not whole(burst) or limit < burst then
  return redis.error_reply('ERR usage: KEY , LIMIT WINDOW BURST: whole numbers, a BURST of at most LIMIT')
end
-- Numbers below 2^53 are exact. A larger number of parts that came back exceeds what any bucket holds.
local token, back = window * 1000000, limit - burst
if limit >= 1e15 or (burst + 1) * token >= 9007199254740992 then
  return redis.error_reply('ERR BURST * WINDOW is too large')
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local bucket = redis.call('HMGET', key, 'used', 'parts', 'at')
local used, parts, at = tonumber(bucket[1]), tonumber(bucket[2]), tonumber(bucket[3])
local left = redis.call('PTTL', key)
if not used or not parts or not at or left <= 0 then
  used, parts, at, left = 0, 0, now, window * 1000
end
parts = math.max(0, parts - back * math.max(0, now - at))

local verdict = 'deny'
if used < limit and parts + token <= burst * token then
  verdict, used, parts = 'allow', used + 1, parts + token
  redis.call('HSET', key, 'used', used, 'parts', string.format('%.0f', parts), 'at', string.format('%.0f', math.max(now, at)))
  if used == 1 then
    redis.call('PEXPIRE', key, string.format('%.0f', left))
  end
end

local function seconds(milliseconds)
  return string.format('%.0f', math.max(1, math.ceil(milliseconds / 1000)))
end
local values = {
  string.format('%.0f %.0f;w=%.0f;burst=%.0f;policy=token_bucket', limit, limit, window, burst),
  seconds(left),
  string.format('%.0f', math.max(0, limit - used)),
}
local missing = parts + token - burst * token
if missing > 0 or used >= limit then
  -- In microseconds. If LIMIT is BURST, or the window's last token was used, nothing comes back before the window ends.
  local wait = back > 0 and used < limit and math.ceil(missing / back) or left * 1000
  values[4] = seconds(math.min(math.ceil(wait / 1000), left))
end
return { verdict, values }
