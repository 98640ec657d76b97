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
-- A bucket is a sorted set with a member for each token, of the instant at which it was taken. An entry that is exactly
-- one period old counts no longer. Members are "<instant>-<number>", numbered among those of their instant, with zeros in
-- front: a sorted set orders members of one score as texts, and the youngest must be the last. The key expires with its
-- youngest entry. Memory is some 130 bytes a token, so COUNT should be at most 10 000.

-- Shared

local function sliding_log(now, given)
  local ceil, max, min = math.ceil, math.max, math.min
  local format, match, tonumber = string.format, string.match, tonumber
  local pcall = redis.pcall
  local ALLOWED, DENIED, UNCHANGED = 0, 1, 2
  -- A bucket outlives its last write by this long, in milliseconds of the server's clock, if the caller brings the time.
  local GIVEN_CLOCK_EXPIRY = 600000
  -- The members that one command takes: a Lua function takes no more than some thousands of arguments.
  local MOST_AT_ONCE = 1000
  local log = {}

  -- A period, in microseconds.
  function log.parsed(text)
    local period = match(text, '^%d+$') and tonumber(text)
    return period and period > 0 and period < 9007199254740992 and period or nil
  end

  -- What there is of a bucket: how many entries count, how many before them do not, and the instant, which is now or, if
  -- the clock stepped back, that of the youngest entry. Or nil and an error.
  local function found(key, charge)
    local youngest = pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
    if youngest.err then
      return nil, youngest
    elseif not youngest[2] then
      return { used = 0, ended = 0, instant = now, key = key, period = charge.parameters }
    end
    local instant = max(now, tonumber(youngest[2]))
    local ended = redis.call('ZCOUNT', key, '-inf', format('%.0f', instant - charge.parameters))
    local used = redis.call('ZCARD', key) - ended
    return { used = used, ended = ended, instant = instant, key = key, period = charge.parameters,
      youngest = tonumber(youngest[2]) }
  end

  -- Microseconds until the entry of this place counts no longer, counted from 0 among all that are kept.
  local function until_gone(log, place)
    local entry = redis.call('ZRANGE', log.key, place, place, 'WITHSCORES')
    -- An instant and a period may be more than 2^53 together; the span between two instants is not.
    return entry[2] and log.period - (log.instant - tonumber(entry[2])) or log.period
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
      return back > 0 and ALLOWED or UNCHANGED, max(burst - used + back, 0), 0, reset(log, back),
        back > 0 and { log = log, back = back } or nil
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

  local function add(log, tokens)
    local at = format('%.0f', log.instant)
    local before = redis.call('ZCOUNT', log.key, at, at)
    local place = 0
    while place < tokens do
      local members = {}
      for number = place, min(place + MOST_AT_ONCE, tokens) - 1 do
        members[#members + 1] = at
        members[#members + 1] = format('%s-%05d', at, before + number)
      end
      local added = pcall('ZADD', log.key, unpack(members))
      if type(added) == 'table' then
        return added
      end
      place = place + MOST_AT_ONCE
    end
  end

  function log.commit(key, charge, change)
    local log = change.log
    if change.all then
      redis.call('DEL', key)
      return nil
    end
    -- What counts no longer goes first: it makes the room that the new entry takes, and would count again if the period
    -- became longer.
    if log.ended > 0 then
      redis.call('ZREMRANGEBYRANK', key, 0, log.ended - 1)
    end
    if change.back then
      redis.call('ZREMRANGEBYRANK', key, -change.back, -1)
    else
      local failure = add(log, change.taken)
      if failure then
        return failure
      end
    end
    local youngest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    if youngest[2] then
      local left = ceil((log.period - (now - tonumber(youngest[2]))) / 1000)
      redis.call('PEXPIRE', key, given and GIVEN_CLOCK_EXPIRY or format('%.0f', max(1, left)))
    end
  end

  return log
end

-- Alone

local time, given = redis.call('TIME'), ARGV[1] ~= ''
local log = sliding_log(given and tonumber(ARGV[1]) or time[1] * 1000000 + time[2], given)
local charge = {
  burst = tonumber(ARGV[2]), parameters = log.parsed(ARGV[3] or ''), cost = tonumber(ARGV[4]), mode = ARGV[5],
}
if #KEYS ~= 1 or not charge.parameters or not charge.mode then
  return redis.error_reply('ERR usage: KEY , NOW COUNT PERIOD COST MODE')
end
local outcome, remaining, retry, reset, change = log.decide(KEYS[1], charge)
local failure = not outcome and remaining or change and log.commit(KEYS[1], charge, change)
return failure or { 0, outcome, remaining, retry, reset }
