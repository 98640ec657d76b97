-- GCRA, a token bucket that refills evenly.
--
--   redis-cli --eval <(lua/assemble gcra.lua) KEY , NOW EFFECTIVE_FROM BURST TOKEN DRAIN COST MODE
--
-- Spend 1 of 20 per second, burst 20, by the server's clock (an empty NOW):
--   redis-cli --eval <(lua/assemble gcra.lua) weir:{0}:PerAddress:192.0.2.1 , '' 0 20 50000 1 1 spend
--
-- The arguments and the reply are those of decide.lua, with
--   BURST  the capacity, in tokens
--   TOKEN  what a token weighs, in levels
--   DRAIN  levels that leave the bucket every microsecond, 0 if it never refills; TOKEN / DRAIN = period / count
--
-- A bucket is that of levels.lua, "<since> <level> <token> <drain>". The next write drops what elevated.lua adds to it.

--[[ include prelude.lua ]]
--[[ include levels.lua ]]
local algorithm = {}

-- Shared

-- DRAIN.
function algorithm.parse(text)
  local drain = tonumber(text)
  return drain and drain < EXACT and drain or nil
end

function algorithm.decide(key, charge)
  local bucket = bucket_of(key, charge)
  if bucket.failure then
    return nil, bucket.failure
  end
  local token, level = charge.count, 0
  bucket.full_in = bucket.written.numbers ~= charge.numbers and rare().full_in(bucket, charge.from)
  if not bucket.full_in then
    level = level_at(bucket, charge, now, key)
  elseif bucket.full_in > 0 then
    level = level_at(bucket, charge, now)
  else
    bucket.full_in = nil
  end
  bucket.found = level
  local held = bucket.holds and bucket.holds.held or 0
  local outcome, after, retry, change, details
  if charge.lease then
    outcome, after, retry, change, details =
      leasing().decided(bucket, charge, token, level, bucket.written.numbers == charge.numbers)
  else
    local least = bucket.leased and leasing().held(bucket, charge) or 0
    if charge.hold or bucket.holds then
      outcome, after, retry, change, held = holding().decided(bucket, charge, token, level, nil, least)
    else
      outcome, after, retry, change = decided(charge, token, level, nil, least)
    end
  end
  local remaining, reset = ((charge.burst - held) * token - after) / token, time_for(after, charge.parameters)
  remaining = remaining - remaining % 1
  if bucket.full_in and not change then
    retry, reset = full_after(bucket.full_in, charge, outcome, retry, reset, held)
  end
  return outcome, remaining > 0 and remaining or 0, retry, reset, change, details
end

function algorithm.standing(key, charge)
  local bucket, token = buckets[key], charge.count
  local level = bucket.found
  local reset = time_for(level, charge.parameters)
  if bucket.full_in then
    reset = (reset == -1 or reset > bucket.full_in) and bucket.full_in or reset
  end
  local held = bucket.holds and bucket.holds.held or 0
  return max(floor(((charge.burst - held) * token - level) / token), 0), reset
end

function algorithm.commit(key, charge, level)
  local bucket = buckets[key]
  level = charge.hold and holding().commit(bucket, charge, level) or level
  local full = time_for(level, charge.parameters)
  local since = bucket.since
  -- A bucket that was made full is forgotten, its time included. Otherwise its time never goes back: a clock that stepped
  -- back would refill the same span twice.
  if level == 0 or since < now then
    since = now
  end
  keep(key, bucket, level, charge, since, full >= 0 and full + since - now or -1)
  if charge.lease then
    leasing().commit(bucket)
  end
end

algorithm.finish = finish

-- Alone

local USAGE = 'KEY , NOW EFFECTIVE_FROM BURST TOKEN DRAIN COST MODE'
local arguments = ARGV
made.gcra = algorithm
--[[ include requests.lua ]]
