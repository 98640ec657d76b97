-- The sliding log: at most COUNT tokens in any PERIOD, exactly.
--
--   redis-cli --eval lua/sliding_log.lua KEY , NOW COUNT PERIOD COST MODE
--
-- Spend 1 of 100 in any minute, by the server's clock (an empty NOW):
--   redis-cli --eval lua/sliding_log.lua weir:{0}:PerAddress:192.0.2.1#log , '' 100 60000000 1 spend
--
-- NOW, COST, MODE and the reply are those of decide.lua, where the words of a charge are COUNT COUNT sliding_log:PERIOD
-- COST MODE. PERIOD is in microseconds. `reset` is the time until the last entry counts no longer.
--
-- A bucket is a list of the instants at which its tokens were taken, the eldest first, one for each token: both ends of a
-- list, its length and a new entry cost the same whatever is between, which a sorted set of so few entries looks through
-- each time. An entry that is exactly one period old counts no longer. The key expires with its youngest entry. Memory is
-- some 10 bytes a token, and COUNT should be at most 10 000: entries in the midst are looked for from an end.

-- '%d' is cheaper, and exact wherever C's long has 64 bits.
local INTEGER = string.format('%d', 9007199254740991) == '9007199254740991' and '%d' or '%.0f'

-- Shared

local function sliding_log(now, given)
  local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
  local format, match, tonumber = string.format, string.match, tonumber
  local call, pcall = redis.call, redis.pcall
  local ALLOWED, DENIED, UNCHANGED = 0, 1, 2
  -- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
  local GIVEN_CLOCK_EXPIRY = 600000
  -- As in decide.lua: how long a key outlives its bucket, and how far ahead of the clock one may be dated.
  local RETENTION, MOST_AHEAD = 60000000, 1000000
  -- The entries that one command takes: a Lua function takes no more than some thousands of arguments.
  local MOST_AT_ONCE = 1000
  local log = {}

  -- A period, in microseconds.
  function log.parsed(text)
    local period = match(text, '^%d+$') and tonumber(text)
    return period and period > 0 and period < 9007199254740992 and period or nil
  end

  -- How many of the `length` entries count no longer. Most often it is none or a few, as every write removes them, so the
  -- steps from the eldest on begin small and double; once they have gone too far, what is between is halved.
  local function ended_of(key, length, until_then)
    local ended, over, step = 0, length, 1
    while ended < over do
      local place = over == length and min(ended + step, over) - 1 or floor((ended + over) / 2)
      if tonumber(call('LINDEX', key, place)) <= until_then then
        ended, step = place + 1, step * 2
      else
        over = place
      end
    end
    return ended
  end

  -- Appends so many tokens of one instant: nothing or an error.
  local function add(key, instant, tokens)
    local at = format(INTEGER, instant)
    while tokens > 0 do
      local part, entries = min(tokens, MOST_AT_ONCE), { at }
      for number = 2, part do
        entries[number] = at
      end
      local added = pcall('RPUSH', key, unpack(entries))
      if type(added) == 'table' then
        return added
      end
      tokens = tokens - part
    end
  end

  -- Keeps the key until its youngest entry counts no longer, and somewhat longer.
  local function keep(key, period, youngest)
    local left = period - (now - youngest)
    local kept = max(1, ceil((left + min(period, RETENTION)) / 1000))
    pcall('PEXPIRE', key, given and GIVEN_CLOCK_EXPIRY or format(INTEGER, kept))
  end

  -- Keeps a key that was written under a shorter period for as long as this one needs.
  local function outlive(key, period, youngest)
    local needed = ceil((period - (now - youngest)) / 1000)
    if needed > 0 and call('PTTL', key) < needed then
      keep(key, period, youngest)
    end
  end

  -- Dates the entries of the future now: the clock stepped back.
  local function redate(key, period, length)
    local past = ended_of(key, length, now)
    call('LTRIM', key, 0, past - 1)
    if past == 0 then
      call('DEL', key)
    end
    local failure = add(key, now, length - past)
    keep(key, period, now)
    return failure
  end

  -- What there is of a bucket: how many entries count, how many before them do not, and the instant, which is now or, if
  -- the clock stepped back, that of the youngest entry. Or nil and an error.
  local function found(key, charge)
    local period, length = charge.parameters, pcall('LLEN', key)
    if length == 0 then
      return { used = 0, ended = 0, instant = now, key = key, period = period }
    elseif type(length) == 'table' then
      return nil, length
    end
    local youngest = tonumber(call('LINDEX', key, -1))
    if youngest > now + MOST_AHEAD then
      local failure = redate(key, period, length)
      if failure then
        return nil, failure
      end
      youngest = now
    elseif not given and youngest <= charge.from then
      outlive(key, period, youngest)
    end
    local instant = max(now, youngest)
    local ended = ended_of(key, length, instant - period)
    return { used = length - ended, ended = ended, instant = instant, key = key, period = period }
  end

  -- Microseconds until the entry of this place counts no longer, counted from 0 among all that are kept.
  local function until_gone(log, place)
    -- An instant and a period may be more than 2^53 together; the span between two instants is not.
    return log.period - (log.instant - tonumber(call('LINDEX', log.key, place)))
  end

  -- Microseconds until so many tokens have come back, should more have been taken now.
  local function time_for(log, tokens)
    if tokens <= 0 then
      return 0
    end
    return tokens > log.used and log.period or until_gone(log, log.ended + tokens - 1)
  end

  -- Microseconds until nothing counts any more of what is left when `given_back` tokens are gone.
  local function reset(log, given_back)
    return log.used > given_back and until_gone(log, log.ended + log.used - given_back - 1) or 0
  end

  function log.decide(key, charge)
    local log, failure = found(key, charge)
    if not log then
      return nil, failure
    end
    local burst, cost, mode, used = charge.burst, charge.cost, charge.mode, log.used
    local room = max(burst - used, 0)
    if mode == 'reset' then
      return ALLOWED, burst, 0, 0, { all = true }
    elseif mode == 'refund' then
      local back = min(cost, used)
      if back == 0 then
        return UNCHANGED, room, 0, reset(log, 0)
      end
      -- What was taken then goes and what is younger stays, unless what is older is too little.
      local spared = 0
      if charge.taken then
        local older = max(ended_of(key, log.ended + used, charge.taken - 1) - log.ended, 0)
        spared = max(used - older - back, 0)
      end
      return ALLOWED, max(burst - used + back, 0), 0, reset(log, spared > 0 and 0 or back),
        { log = log, back = back, spared = spared }
    elseif mode ~= 'spend_up_to' and cost > room then
      local refusal = mode == 'spend_only' and UNCHANGED or DENIED
      return refusal, room, cost > burst and -1 or time_for(log, used + cost - burst), reset(log, 0)
    end
    local taken = min(cost, room)
    if taken == 0 then
      return cost == 0 and ALLOWED or UNCHANGED, room, 0, reset(log, 0)
    end
    local retry = mode == 'spend_up_to' and 0 or time_for(log, used + taken + taken - burst)
    return ALLOWED, room - taken, retry, log.period, mode ~= 'check' and { log = log, taken = taken } or nil
  end

  function log.standing(key, charge)
    local log = found(key, charge)
    return max(charge.burst - log.used, 0), reset(log, 0)
  end

  function log.commit(key, charge, change)
    local log = change.log
    if change.all then
      call('DEL', key)
      return nil
    end
    -- What counts no longer goes first: it makes the room that a new entry takes, and a clock that steps back shall not
    -- find it the youngest.
    local spared = change.spared or 0
    local younger = spared > 0 and call('LRANGE', key, -spared, -1) or {}
    if log.ended > 0 or change.back then
      call('LTRIM', key, log.ended, -1 - (change.back or 0) - spared)
    end
    for first = 1, spared, MOST_AT_ONCE do
      local added = pcall('RPUSH', key, unpack(younger, first, min(first + MOST_AT_ONCE - 1, spared)))
      if type(added) == 'table' then
        return added
      end
    end
    local youngest = log.instant
    if change.taken then
      local failure = add(log.key, log.instant, change.taken)
      if failure then
        return failure
      end
    else
      youngest = tonumber(call('LINDEX', key, -1) or nil)
    end
    if youngest then
      keep(key, log.period, youngest)
    end
  end

  return log
end

-- Alone

local time, given = redis.call('TIME'), ARGV[1] ~= ''
local log = sliding_log(given and tonumber(ARGV[1]) or time[1] * 1000000 + time[2], given)
local charge = {
  from = 0, burst = tonumber(ARGV[2]), parameters = log.parsed(ARGV[3] or ''), cost = tonumber(ARGV[4]), mode = ARGV[5],
}
if #KEYS ~= 1 or not charge.parameters or not charge.mode then
  return redis.error_reply('ERR usage: KEY , NOW COUNT PERIOD COST MODE')
end
local outcome, remaining, retry, reset, change = log.decide(KEYS[1], charge)
local failure = not outcome and remaining or change and log.commit(KEYS[1], charge, change)
return failure or { 0, outcome, remaining, retry, reset }
