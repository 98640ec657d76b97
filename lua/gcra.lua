-- GCRA for all charges of one request, all or nothing, in one call.
--
--   redis-cli --eval lua/gcra.lua KEY [KEY ...] , NOW EFFECTIVE_FROM  BURST TOKEN DRAIN COST MODE  [BURST TOKEN ...]
--
-- Spend 1 of 20 per second, burst 20, by the server's clock (an empty NOW):
--   redis-cli --eval lua/gcra.lua weir:{0}:PerAddress:192.0.2.1 , '' 0  20 50000 1 1 spend
--
-- KEYS: the buckets, no two alike; on a cluster all of one slot. A bucket is a string "<since> <level> <token> <drain>":
--   what was used at <since>, in levels, and the numbers it was written under. A key that is absent is a full bucket.
-- ARGV[1] NOW: microseconds since the Unix epoch, or empty for the server's own clock.
-- ARGV[2] EFFECTIVE_FROM: when these numbers took effect, in the same unit; read where a bucket was written under others.
-- Then five for each key, in the order of KEYS:
--   BURST  the capacity, in tokens
--   TOKEN  what a token weighs, in levels
--   DRAIN  levels that leave the bucket every microsecond, 0 if it never refills; TOKEN / DRAIN = period / count
--   COST   tokens; 0 asks without taking
--   MODE   spend       takes the cost if it is there, and denies the whole call otherwise
--          check       answers as spend would, and takes nothing
--          spend_only  takes the cost if it is there, and never denies
--          refund      gives the cost back, up to a full bucket
--          reset       makes the bucket full
--
-- Reply: integers. First the number of keys whose text was no bucket; they count as full and are overwritten. Then four
-- for each key:
--   outcome    0 allowed, 1 denied, 2 nothing happened
--   remaining  whole tokens left
--   retry      microseconds until the same charge would fit, -1 for never
--   reset      microseconds until the bucket is full, -1 for never
-- If one charge is denied nothing is written, and the others report where their bucket stands without the charge.
-- A key of another type is an error (WRONGTYPE), raised before anything is written.
--
-- Numbers are doubles. BURST * TOKEN, TOKEN, DRAIN and all times must be below 2^53, below which doubles hold every
-- integer. Where an intermediate result can be larger the comment says why that does no harm.

-- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time:
-- the server cannot know when that clock will have filled the bucket.
local GIVEN_CLOCK_EXPIRY = 600000

local EXACT = 9007199254740992
local ALLOWED, DENIED, UNCHANGED = 0, 1, 2

if #KEYS == 0 or #ARGV ~= 2 + 5 * #KEYS then
  return redis.error_reply('ERR usage: KEY [KEY ...] , NOW EFFECTIVE_FROM, and BURST TOKEN DRAIN COST MODE for each KEY')
end

-- The time is read once, so that all buckets of the call agree on it. It is 16 digits long; where numbers become text,
-- '%.0f' is needed, because tostring() keeps 14.
local given = ARGV[1] ~= ''
local now
if given then
  now = tonumber(ARGV[1])
else
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local effective_from = tonumber(ARGV[2])

-- The level after `span` microseconds. A product beyond 2^53 may be rounded, but never to below 2^53: it still is more
-- than any level, and the bucket is full either way.
local function drained(level, drain, span)
  return math.max(0, level - drain * math.max(0, span))
end

-- ceil(used * token / old_token), at most capacity. The product may need 106 bits, so it is never formed: the bits of
-- `used` are taken from the top, and quotient and remainder are doubled and added to, as in long multiplication.
-- Remainders stay below old_token because the sum is compared before it is formed. Quotients beyond 2^53 may be
-- rounded, but never to below 2^53: they still are more than any capacity.
local function reweighed(used, token, old_token, capacity)
  local whole, part = math.floor(token / old_token), token % old_token
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
  return math.min(quotient, capacity)
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
  return math.ceil(levels / drain)
end

-- What a bucket's text says: since, level, token, drain; nothing if it is the text of something else.
local function parsed(text)
  local since, level, token, drain = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
  since, level, token, drain = tonumber(since), tonumber(level), tonumber(token), tonumber(drain)
  if since and since < EXACT and level < EXACT and token > 0 and token < EXACT and drain < EXACT then
    return since, level, token, drain
  end
end

-- What is used now, in levels of the numbers that hold now. Under changed numbers the level drains at the old rate until
-- the new ones took effect, is weighed anew (the tokens used stay the same), and drains at the new rate from there.
local function level_now(since, level, old_token, old_drain, token, drain, capacity)
  if token == old_token and drain == old_drain then
    return math.min(drained(level, drain, now - since), capacity)
  end
  local changed = math.min(math.max(effective_from, since), math.max(now, since))
  local used = drained(level, old_drain, changed - since)
  return drained(reweighed(used, token, old_token, capacity), drain, now - changed)
end

local corrupt, denied = 0, false
local charges = {}

for place = 1, #KEYS do
  local at = 2 + 5 * (place - 1)
  local burst, token, drain = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local cost, mode = tonumber(ARGV[at + 4]), ARGV[at + 5]
  local capacity = burst * token

  local level, since = 0, now
  -- GET for each key rather than MGET: MGET answers nil for a key of another type, which would read as a full bucket
  -- and be overwritten.
  local text = redis.call('GET', KEYS[place])
  if text then
    local stored_since, stored_level, old_token, old_drain = parsed(text)
    if stored_since then
      level = level_now(stored_since, stored_level, old_token, old_drain, token, drain, capacity)
      -- Written back as it was read, a clock that stepped back would earn the interval twice.
      since = math.max(stored_since, now)
    else
      corrupt = corrupt + 1
    end
  end

  -- `after` is the level to report, `write` the one to store: nil leaves the key alone, 0 deletes it.
  local outcome, after, retry, write = ALLOWED, level, 0, nil
  if mode == 'spend' or mode == 'check' or mode == 'spend_only' then
    local room = capacity - level
    -- A cost above the burst may be larger than 2^53; it is not multiplied.
    if cost > burst or cost * token > room then
      outcome = mode == 'spend_only' and UNCHANGED or DENIED
      retry = cost > burst and -1 or time_for(cost * token - room, drain)
    else
      local wanted = cost * token
      after = level + wanted
      -- An identical charge would fit once what is missing has drained. The sum 2 * wanted may not fit into 2^53.
      retry = time_for(math.max(0, wanted - (room - wanted)), drain)
      if mode ~= 'check' and cost > 0 then
        write = after
      end
    end
  elseif mode == 'refund' then
    -- A product beyond 2^53 may be rounded, but is more than the level either way.
    local back = math.min(cost * token, level)
    if back == 0 then
      outcome = UNCHANGED
    else
      after = level - back
      write = after
    end
  elseif mode == 'reset' then
    after, write = 0, 0
  else
    return redis.error_reply('ERR unknown mode ' .. mode .. ': spend, check, spend_only, refund or reset')
  end

  denied = denied or outcome == DENIED
  charges[place] = {
    outcome = outcome, level = level, after = after, retry = retry, write = write,
    since = since, capacity = capacity, token = token, drain = drain,
  }
end

local reply = { corrupt }
for place, charge in ipairs(charges) do
  if denied and charge.outcome == ALLOWED then
    charge.outcome, charge.after, charge.retry = UNCHANGED, charge.level, 0
  end
  if charge.write and not denied then
    if charge.write == 0 then
      redis.call('DEL', KEYS[place])
    else
      local text = string.format('%.0f %.0f %.0f %.0f', charge.since, charge.write, charge.token, charge.drain)
      -- The value and its expiry are one command, so no crash leaves a key that stays for ever. The expiry is rounded
      -- up: a key that is gone early is a bucket that is full early.
      if given then
        redis.call('SET', KEYS[place], text, 'PX', GIVEN_CLOCK_EXPIRY)
      elseif charge.drain == 0 then
        redis.call('SET', KEYS[place], text)
      else
        local full = charge.since - now + time_for(charge.write, charge.drain)
        redis.call('SET', KEYS[place], text, 'PX', string.format('%.0f', math.max(1, math.ceil(full / 1000))))
      end
    end
  end
  reply[#reply + 1] = charge.outcome
  reply[#reply + 1] = math.floor((charge.capacity - charge.after) / charge.token)
  reply[#reply + 1] = charge.retry
  reply[#reply + 1] = time_for(charge.after, charge.drain)
end
return reply
