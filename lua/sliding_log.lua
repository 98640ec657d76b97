-- The sliding log: at most COUNT tokens in any PERIOD, exactly.
--
--   redis-cli --eval <(lua/assemble sliding_log.lua) KEY , NOW COUNT PERIOD COST MODE
--
-- Spend 1 of 100 in any minute, by the server's clock (an empty NOW):
--   redis-cli --eval <(lua/assemble sliding_log.lua) weir:{0}:PerAddress:192.0.2.1#log , '' 100 60000000 1 spend
--
-- NOW, COST, MODE and the reply are those of decide.lua, where the words of a charge are COUNT COUNT sliding_log:PERIOD COST
-- MODE. PERIOD is in microseconds. `reset` is the time until the last entry expires.
--
-- A bucket is a list of the instants at which its tokens were taken, oldest first, one for each token. Both ends of a list, its
-- length and a new entry cost the same whatever is between; a sorted set with so few entries is searched from the start each
-- time. An entry that is exactly one period old no longer counts. The key expires with its newest entry. An entry takes some 10
-- bytes, and COUNT should be at most 10,000: entries in the middle are found by counting from an end.

--[[ include prelude.lua ]]
local algorithm = {}

-- Shared

-- The most entries in one command: a Lua function takes no more than some thousands of arguments.
local MOST_AT_ONCE = 1000

-- A period, in microseconds.
function algorithm.parse(text)
  local period = match(text, '^%d+$') and tonumber(text)
  return period and period > 0 and period < EXACT and period or nil
end

-- The number of the `length` entries that no longer count. It is usually 0 or small, since every write removes them. So the
-- steps from the oldest begin small and double; once they have gone too far, the range between is halved.
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

-- Appends this number of tokens, taken at one instant: nil or an error.
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

-- Keeps the key until its newest entry no longer counts, and for a while after that.
local function keep(key, period, newest)
  pcall('PEXPIRE', key, kept_for(period - (now - newest), period))
end

-- Keeps a key that was written under a shorter period for as long as this one needs.
local function outlive(key, period, newest)
  local needed = ceil((period - (now - newest)) / 1000)
  if needed > 0 and call('PTTL', key) < needed then
    keep(key, period, newest)
  end
end

-- Dates entries of the future now: the clock stepped back.
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

-- The state of a bucket: how many entries count, how many before them do not, and the instant, which is now or, if the clock
-- stepped back, that of the newest entry. Or nil and an error.
local function found(key, charge)
  local period, length = charge.parameters, pcall('LLEN', key)
  if length == 0 or type(length) == 'table' and discarded(key, length) then
    return { used = 0, ended = 0, instant = now, key = key, period = period }
  elseif type(length) == 'table' then
    return nil, length
  end
  local newest = tonumber(call('LINDEX', key, -1))
  if newest > now + MOST_AHEAD then
    local failure = redate(key, period, length)
    if failure then
      return nil, failure
    end
    newest = now
  elseif not given and newest <= charge.from then
    outlive(key, period, newest)
  end
  local instant = max(now, newest)
  local ended = ended_of(key, length, instant - period)
  return { used = length - ended, ended = ended, instant = instant, key = key, period = period }
end

-- Microseconds until the entry at this place no longer counts; places count from 0 among all entries.
local function until_gone(log, place)
  -- An instant and a period may be more than 2^53 together; the span between two instants is not.
  return log.period - (log.instant - tonumber(call('LINDEX', log.key, place)))
end

-- Microseconds until this number of tokens has come back; more of them than are used are taken now.
local function time_for(log, tokens)
  if tokens <= 0 then
    return 0
  end
  return tokens > log.used and log.period or until_gone(log, log.ended + tokens - 1)
end

-- Microseconds until no entry counts, once `given_back` tokens are gone.
local function reset(log, given_back)
  return log.used > given_back and until_gone(log, log.ended + log.used - given_back - 1) or 0
end

function algorithm.decide(key, charge)
  local log, failure = found(key, charge)
  if not log then
    return nil, failure
  end
  local burst, cost, mode, used = charge.burst, charge.cost, charge.mode, log.used
  local room = max(burst - used, 0)
  if mode == 'reset' then
    return ALLOWED, burst, 0, 0, { all = true }
  elseif mode == 'refund' then
    local all, spared = used, 0
    if charge.taken then
      local length = log.ended + used
      local upto = max(ended_of(key, length, charge.taken), log.ended)
      all = upto - max(ended_of(key, upto, charge.taken - 1), log.ended)
      spared = length - upto
    end
    local back = min(cost, all)
    if back == 0 then
      return UNCHANGED, room, 0, reset(log, 0)
    end
    return ALLOWED, max(burst - used + back, 0), 0, reset(log, spared > 0 and 0 or back),
      { log = log, back = back, spared = spared }
  elseif mode ~= 'spend_up_to' and cost > room then
    return charge.short, room, cost > burst and -1 or time_for(log, used + cost - burst), reset(log, 0)
  end
  local taken = min(cost, room)
  if taken == 0 or charge.look then
    return (cost == 0 or charge.look) and ALLOWED or UNCHANGED, room, 0, reset(log, 0)
  end
  local retry = mode == 'spend_up_to' and 0 or time_for(log, used + taken + taken - burst)
  return ALLOWED, room - taken, retry, log.period, mode ~= 'check' and { log = log, taken = taken } or nil,
    charge.told and { 'taken', log.instant } or nil
end

function algorithm.standing(key, charge)
  local log = found(key, charge)
  return max(charge.burst - log.used, 0), reset(log, 0)
end

function algorithm.commit(key, charge, change)
  local log = change.log
  if change.all then
    call('DEL', key)
    return nil
  end
  -- Entries that no longer count go first. They make room for new ones, and none of them must be the newest when the clock
  -- steps back.
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
  local newest = log.instant
  if change.taken then
    local failure = add(log.key, log.instant, change.taken)
    if failure then
      return failure
    end
  else
    newest = tonumber(call('LINDEX', key, -1) or nil)
  end
  if newest then
    keep(key, log.period, newest)
  end
end

-- Alone

local USAGE = 'KEY , NOW COUNT PERIOD COST MODE'
local arguments = { ARGV[1], '0', ARGV[2] or '', ARGV[2] or '', 'sliding_log:' .. (ARGV[3] or ''), ARGV[4], ARGV[5] }
made.sliding_log = algorithm
--[[ include requests.lua ]]
