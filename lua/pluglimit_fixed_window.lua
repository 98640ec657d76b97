-- PlugLimit's fixed window: LIMIT requests in a window of WINDOW seconds, which the first of them begins.
--
--   redis-cli --eval lua/pluglimit_fixed_window.lua KEY , LIMIT WINDOW
--
-- In limits.yaml:
--   algorithm: script
--   file: lua/pluglimit_fixed_window.lua
--   args: [10, 60]
--   headers: [x-ratelimit-limit, x-ratelimit-reset, x-ratelimit-remaining]
--
-- Reply: { 'allow' or 'deny', { LIMIT, seconds until the window ends, requests left } }, all as text.
--
-- A bucket is the number of requests used, so that another LIMIT applies at once. The key expires with the window. Unlike in the
-- original, the seconds are rounded up and never 0, a denied request writes nothing, and a LIMIT of 0 denies the first request,
-- too. An invalid argument, or a server that cannot write, is an error: the original lets the request pass.

local key, limit, window = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local function whole(number)
  return number and number >= 0 and number < 1e15 and number % 1 == 0
end
if not key or not whole(limit) or not whole(window) or window == 0 then
  return redis.error_reply('ERR usage: KEY , LIMIT WINDOW: whole numbers, the WINDOW in seconds')
end

local used = tonumber(redis.call('GET', key) or 0)
if not used then
  return redis.error_reply('ERR ' .. key .. ' is no bucket of this script')
end
local left = redis.call('PTTL', key)
if left <= 0 then
  -- There is no window yet, or somebody has removed the expiry.
  used, left = 0, window * 1000
end

local verdict = 'deny'
if used < limit then
  verdict, used = 'allow', used + 1
  if used == 1 then
    redis.call('SET', key, '1', 'PX', string.format('%.0f', left))
  else
    redis.call('INCR', key)
  end
end
return { verdict, {
  string.format('%.0f', limit),
  string.format('%.0f', math.max(1, math.ceil(left / 1000))),
  string.format('%.0f', math.max(0, limit - used)),
} }
