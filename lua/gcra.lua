-- GCRA, a token bucket that refills evenly.
--
--   redis-cli --eval lua/gcra.lua KEY , NOW EFFECTIVE_FROM BURST TOKEN DRAIN COST MODE
--
-- Spend 1 of 20 per second, burst 20, by the server's clock (an empty NOW):
--   redis-cli --eval lua/gcra.lua weir:{0}:PerAddress:192.0.2.1 , '' 0 20 50000 1 1 spend
--
-- NOW, EFFECTIVE_FROM, COST, MODE and the reply are those of decide.lua; the other words are:
--   BURST  the capacity, in tokens
--   TOKEN  what a token weighs, in levels
--   DRAIN  levels that leave the bucket every microsecond, 0 if it never refills; TOKEN / DRAIN = period / count
--
-- A bucket is a string "<since> <level> <token> <drain>": what was used at <since>, in levels, and the numbers it was
-- written under. A key that is absent is a full bucket. What elevated.lua adds to it goes with the next write.

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local format, match, tonumber = string.format, string.match, tonumber
local EXACT = 9007199254740992

-- Shared

-- The level after `span` microseconds. A product beyond 2^53 may be rounded, but never to below 2^53: it still is more
-- than any level, and the bucket is full either way.
local function drained(level, drain, span)
  if span <= 0 then
    return level
  end
  level = level - drain * span
  return level > 0 and level or 0
end

-- ceil(used * token / old_token), at most capacity. The product may need 106 bits, so it is never formed: the bits of
-- `used` are taken from the top, and quotient and remainder are doubled and added to, as in long multiplication.
-- Remainders stay below old_token because the sum is compared before it is formed. Quotients beyond 2^53 may be
-- rounded, but never to below 2^53: they still are more than any capacity.
local function reweighed(used, token, old_token, capacity)
  local whole, part = floor(token / old_token), token % old_token
  local quotient, remainder = 0, 0
  local function add(amount)
    if remainder >= old_token - amount then
      remainder = remainder - (old_token - amount)
      quotient = quotient + 1
    else
      remainder = remainder + amount
    end
  end
  local bit = EXACT / 2
  while bit >= 1 do
    quotient = quotient * 2
    add(remainder)
    if used >= bit then
      used = used - bit
      quotient = quotient + whole
      add(part)
    end
    bit = bit / 2
  end
  if remainder > 0 then
    quotient = quotient + 1
  end
  return quotient < capacity and quotient or capacity
end

-- Microseconds until `levels` have left the bucket, rounded up. Below 2^53 the double nearest to a quotient of integers
-- is a whole number only if the quotient is one: levels = n * drain + 1 is 1 / drain above n, which is more than half of
-- the distance between the doubles there, since n * drain < 2^53. So ceil (and floor, and %) are exact.
local function time_for(levels, drain)
  if levels == 0 then
    return 0
  elseif drain == 0 then
    return -1
  end
  return ceil(levels / drain)
end

-- Alone

local ALLOWED, DENIED, UNCHANGED = 0, 1, 2
-- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
local GIVEN_CLOCK_EXPIRY = 600000

local given, mode, time = ARGV[1] ~= '', ARGV[7], redis.call('TIME')
local now = given and tonumber(ARGV[1]) or time[1] * 1000000 + time[2]
local effective_from, burst, token, drain, cost = unpack({
  tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]),
})
if #KEYS ~= 1 or not cost then
  return redis.error_reply('ERR usage: KEY , NOW EFFECTIVE_FROM BURST TOKEN DRAIN COST MODE')
end
local capacity = burst * token

local text, corrupt = redis.call('GET', KEYS[1]), 0
local numbers = match(text or '', '^(%d+ %d+ %d+ %d+) %d+ %d+ %d+$') or text or ''
local since, level, old_token, old_drain = match(numbers, '^(%d+) (%d+) (%d+) (%d+)$')
since, level, old_token, old_drain = tonumber(since), tonumber(level), tonumber(old_token), tonumber(old_drain)
if not since then
  since, level, corrupt = now, 0, text and 1 or 0
elseif old_token == token and old_drain == drain then
  level = drained(level, drain, now - since)
  level = since <= effective_from and min(level, capacity) or level
else
  local changed = min(max(effective_from, since), max(now, since))
  level = drained(level, old_drain, changed - since)
  -- What was written later and is more is of a gateway with other rules: what it has counted stays used.
  level = reweighed(level, token, old_token, since <= effective_from and capacity or EXACT - 1)
  level = drained(level, drain, now - changed)
end

local outcome, after, retry = ALLOWED, level, 0
local room, wanted = capacity - level, cost * token
if mode == 'reset' then
  after = 0
elseif mode == 'refund' or mode == 'spend_up_to' then
  after = mode == 'refund' and level - min(wanted, level) or level + min(wanted, max(room, 0))
  outcome = (after ~= level or mode ~= 'refund' and cost == 0) and ALLOWED or UNCHANGED
elseif mode ~= 'spend' and mode ~= 'check' and mode ~= 'spend_only' then
  return redis.error_reply('ERR unknown mode ' .. mode)
elseif cost > burst or wanted > room and cost > 0 then
  outcome = mode == 'spend_only' and UNCHANGED or DENIED
  retry = cost > burst and -1 or time_for(wanted - room, drain)
else
  local missing = wanted - (room - wanted)
  after, retry = level + wanted, missing > 0 and cost > 0 and time_for(missing, drain) or 0
end

local writes = outcome == ALLOWED and mode ~= 'check' and (after ~= level or mode == 'reset')
if writes and after == 0 then
  redis.call('DEL', KEYS[1])
elseif writes then
  since = max(since, now)
  local value = format('%.0f %.0f %.0f %.0f', since, after, token, drain)
  local full = given and GIVEN_CLOCK_EXPIRY or drain > 0 and max(1, ceil((since - now + ceil(after / drain)) / 1000))
  if full then
    redis.call('SET', KEYS[1], value, 'PX', format('%.0f', full))
  else
    redis.call('SET', KEYS[1], value)
  end
end
return { corrupt, outcome, max(floor((capacity - after) / token), 0), retry, time_for(after, drain) }
