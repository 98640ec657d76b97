-- The beginning of every script here: library functions, constants, and the state of a call.

-- Shared

-- Lua's pcall contains errors in user scripts. Redis' pcall returns an error as a value, so that it stays
-- with the request whose bucket it is about.
local protected, call, pcall = pcall, redis.call, redis.pcall
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local format, match, sub, tonumber, type = string.format, string.match, string.sub, tonumber, type

-- 2^53: a double holds every integer below it.
local EXACT = 9007199254740992
local ALLOWED, DENIED, UNCHANGED, SHORT = 0, 1, 2, 3

-- How long a bucket outlives its last write if the caller gives the time, in milliseconds of the server's clock. The server
-- can't tell when the caller's clock will have filled the bucket.
local GIVEN_CLOCK_EXPIRY = 600000

-- How long a key outlives its bucket at most, in microseconds: rules may change to slower ones before the bucket is full. A
-- charge or check under the new numbers then keeps the key for as long as they need.
local RETENTION = 60000000

-- The `from` of numbers that a call brings: what the bucket has used counts by them since the last write.
local OF_THE_CALL = EXACT - 1

-- How far ahead of the clock a bucket may be dated, in microseconds. Until then it stands still; beyond that it is dated now,
-- since the clock stepped back or an earlier server's clock was ahead.
local MOST_AHEAD = 1000000

-- The format of an integer: tostring() keeps 14 digits, and a time has 16. '%d' takes a fifth of the time of '%.0f', and is
-- as exact where C's long has 64 bits.
local INTEGER = format('%d', EXACT - 1) == '9007199254740991' and '%d' or '%.0f'

-- The time in microseconds since the Unix epoch, read once so that all buckets of the call agree on it. `given` is true if
-- the caller gave it.
local given = ARGV[1] ~= ''
local now
if given then
  now = tonumber(ARGV[1])
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The milliseconds to keep a key whose bucket is full in `full` microseconds, rounded up. It outlives the bucket for as long again,
-- or for as long as `more`. Here, and where every decision passes, there are operators instead of max, min, floor and ceil, each
-- of which takes as long as ten.
local function kept_for(full, more)
  if given then
    return GIVEN_CLOCK_EXPIRY
  end
  more = more or full
  local kept = (full + (more < RETENTION and more or RETENTION)) / 1000
  return kept > 0 and kept - kept % 1 + 1 or 1
end

-- The instant at which other numbers than those of the last write, at `since`, began to hold: when the rules changed to them, and
-- `since` if they did before or if a call brings them. Calls have no order, and one that is repeated finds the same.
local function changed_at(since, from, instant)
  return from >= OF_THE_CALL and since or min(max(from, since), max(instant, since))
end

-- True if the rules have changed to these numbers since the last write, at `since`.
local function follow_a_change(from, since)
  return since <= from and from < OF_THE_CALL
end

-- The waits of a charge that has changed nothing, if the bucket is full after `wait`: before it would fit, and until it is full.
-- Tokens may be `held` beyond that.
local function full_after(wait, charge, outcome, retry, reset, held)
  -- It answers as the spend would, which writes its own numbers.
  if charge.mode == 'check' and charge.cost > 0 and outcome <= ALLOWED and not charge.look then
    return retry, reset
  elseif charge.cost <= charge.burst - (held or 0) and (retry == -1 or retry > wait) then
    retry = wait
  end
  return retry, (reset == -1 or reset > wait) and wait or reset
end

-- The number of keys that held something which is not a bucket.
local corrupt = 0

-- True if a read failed because the key is of another type. The key is deleted then: it counts as a full bucket, as other text does.
local function discarded(key, failure)
  if match(failure.err, 'WRONGTYPE') and type(pcall('DEL', key)) == 'number' then
    corrupt = corrupt + 1
    return true
  end
end

-- The number of the request at hand, counted from 1.
local turn = 0

-- The algorithms that this call has made, by name, and the function that makes others, if there are any.
local made, load = {}, nil

-- Defined in requests.lua, and in leases.lua and holds.lua for the algorithms that include them.
local algorithm_of, leasing, holding
